#include "runtime/comm/socket/SocketChannel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

constexpr size_t kPiecesAtOnce = 64;

msghdr messageOf(std::vector<iovec>& pieces, size_t at) {
  msghdr message{};
  message.msg_iov = pieces.data() + at;
  message.msg_iovlen = std::min(pieces.size() - at, kPiecesAtOnce);
  return message;
}

timespec timeOf(std::chrono::nanoseconds time) {
  constexpr int64_t kSecond = 1000000000;
  const int64_t nanoseconds = std::max<int64_t>(time.count(), 0);
  return {nanoseconds / kSecond, nanoseconds % kSecond};
}

// Cuts the message to `most` bytes, with pieces of its own.
void limit(msghdr& message, iovec* pieces, uint64_t most) {
  std::copy_n(message.msg_iov, message.msg_iovlen, pieces);
  message.msg_iov = pieces;
  for (size_t i = 0; i < message.msg_iovlen; ++i) {
    if (most <= pieces[i].iov_len) pieces[i].iov_len = most, message.msg_iovlen = i + 1;
    most -= pieces[i].iov_len;
  }
}

bool mustWait(ssize_t count) {
  return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

}  // namespace

void SocketChannel::Flow::add(std::byte* data, size_t bytes) {
  if (idle()) {
    pieces.clear();
    at = 0;
  }
  pieces.push_back({data, bytes});
}

void SocketChannel::Flow::advance(size_t bytes) {
  for (; at < pieces.size() && bytes >= pieces[at].iov_len; ++at, ++done) bytes -= pieces[at].iov_len;
  if (bytes == 0) return;
  pieces[at].iov_base = static_cast<std::byte*>(pieces[at].iov_base) + bytes;
  pieces[at].iov_len -= bytes;
}

SocketChannel::SocketChannel(std::vector<Socket> sockets, const ProcessGroup& group, int wakeup, Traffic& traffic,
                             int64_t communicator, SendRate* rate)
    : CountingChannel(traffic, communicator), group_(group), wakeup_(wakeup), rate_(rate), links_(sockets.size()) {
  for (size_t i = 0; i < sockets.size(); ++i) links_[i].socket = std::move(sockets[i]);
}

void SocketChannel::send(int64_t process, std::span<const std::byte> piece) {
  Link& link = links_[static_cast<size_t>(process)];
  if (rate_ && link.out.idle()) link.since = Clock::now();
  link.out.add(const_cast<std::byte*>(piece.data()), piece.size());
}

uint64_t SocketChannel::allowed(Link& link) const {
  if (link.reserved == 0) {
    for (size_t i = link.out.at; i < link.out.pieces.size() && link.reserved < SendRate::kPieceBytes; ++i)
      link.reserved += link.out.pieces[i].iov_len;
    link.reserved = std::min(link.reserved, SendRate::kPieceBytes);
    link.since = link.due = rate_->reserve(link.reserved, link.since);
  }
  return link.due <= Clock::now() ? link.reserved : 0;
}

void SocketChannel::receive(int64_t process, std::span<std::byte> piece) {
  links_[static_cast<size_t>(process)].in.add(piece.data(), piece.size());
}

bool SocketChannel::idle(int64_t process) const {
  return links_[static_cast<size_t>(process)].idle();
}

Expected<bool> SocketChannel::poll(std::chrono::milliseconds limit) {
  const int64_t processes = group_.size();
  bool moved = false, idle = true;
  // Each process begins with the next one, so that not all send to the same.
  for (int64_t i = 1; i < processes; ++i) {
    const int64_t process = (group_.rank() + i) % processes;
    const Link& link = links_[static_cast<size_t>(process)];
    if (link.idle()) continue;
    SHEAF_RETURN_IF_ERROR(advance(process, moved));
    idle &= link.idle();
  }
  if (!moved && !idle) wait(limit);
  return moved;
}

Status SocketChannel::advance(int64_t process, bool& moved) {
  Link& link = links_[static_cast<size_t>(process)];
  auto& [socket, out, in, reserved, due, since] = link;
  const uint64_t most = out.idle() ? 0 : rate_ ? allowed(link) : UINT64_MAX;
  if (most > 0) {
    msghdr message = messageOf(out.pieces, out.at);
    iovec cut[kPiecesAtOnce];
    if (rate_) limit(message, cut, most);
    ssize_t count = sendmsg(socket.descriptor(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      out.advance(static_cast<size_t>(count));
      countSent(process, static_cast<uint64_t>(count));
      if (rate_) reserved -= static_cast<uint64_t>(count);
    }
    if (count < 0 && !mustWait(count)) return broken(process, systemError());
    moved |= count > 0;
  }
  if (!in.idle()) {
    msghdr message = messageOf(in.pieces, in.at);
    ssize_t count = recvmsg(socket.descriptor(), &message, MSG_DONTWAIT);
    if (count > 0) in.advance(static_cast<size_t>(count));
    if (count == 0) return broken(process, "it was closed");
    if (count < 0 && !mustWait(count)) return broken(process, systemError());
    moved |= count > 0;
  }
  return {};
}

void SocketChannel::wait(std::chrono::milliseconds limit) const {
  constexpr size_t kPolled = 128;
  pollfd polled[kPolled];
  size_t count = 0;
  polled[count++] = {wakeup_, POLLIN, 0};
  const auto now = Clock::now();
  Clock::duration until = limit;
  for (const Link& link : links_) {
    if (link.idle() || count == kPolled) continue;
    const bool later = rate_ && !link.out.idle() && link.due > now;
    if (later) until = std::min(until, link.due - now);
    int events = (link.out.idle() || later ? 0 : POLLOUT) | (link.in.idle() ? 0 : POLLIN);
    if (events != 0) polled[count++] = {link.socket.descriptor(), static_cast<short>(events), 0};
  }
  // Where there are more connections than are polled, the others are looked at soon.
  const timespec time =
      timeOf(count == kPolled ? std::min<Clock::duration>(until, std::chrono::milliseconds(1)) : until);
  ppoll(polled, count, &time, nullptr);
}

Status SocketChannel::broken(int64_t process, const std::string& why) const {
  return Status::error(cat("the connection to ", group_.describe(process), " is broken: ", why));
}

}  // namespace sheaf::comm
