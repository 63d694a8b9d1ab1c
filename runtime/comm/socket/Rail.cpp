#include "runtime/comm/socket/Rail.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

constexpr size_t kPiecesAtOnce = 64;
constexpr std::chrono::milliseconds kLook(100);
// A process that ends says why elsewhere; so long that word may take.
constexpr std::chrono::seconds kLastWords(2);

// Moves `at` over `count` bytes of the pieces.
void consume(std::vector<iovec>& pieces, size_t& at, size_t count) {
  while (at < pieces.size() && count >= pieces[at].iov_len) count -= pieces[at++].iov_len;
  if (count == 0) return;
  pieces[at].iov_base = static_cast<std::byte*>(pieces[at].iov_base) + count;
  pieces[at].iov_len -= count;
}

msghdr messageOf(std::vector<iovec>& pieces, size_t at) {
  msghdr message{};
  message.msg_iov = pieces.data() + at;
  message.msg_iovlen = std::min(pieces.size() - at, kPiecesAtOnce);
  return message;
}

bool mustWait(ssize_t count) {
  return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

}  // namespace

Rail::Rail(std::vector<Socket> sockets, const ProcessGroup& group, const AbortSignal& abort, int wakeup, size_t pieces)
    : group_(group), abort_(abort), wakeup_(wakeup), links_(sockets.size()) {
  for (size_t i = 0; i < sockets.size(); ++i) {
    links_[i].socket = std::move(sockets[i]);
    links_[i].out.reserve(pieces + 1);
    links_[i].in.reserve(2);
  }
}

void Rail::begin(const CollectiveBuffers& collective) {
  mine_ = {mine_.number + 1, static_cast<uint32_t>(collective.op), static_cast<uint32_t>(collective.type),
           collective.count};
  for (Link& link : links_) {
    link.sent = link.received = 0;
    link.agreed = false;
    link.out.clear();
    link.in.clear();
    if (!link.socket.open()) continue;
    link.out.push_back({&mine_, sizeof mine_});
    link.in.push_back({&link.header, sizeof link.header});
  }
}

void Rail::send(int64_t process, const std::byte* data, uint64_t bytes) {
  if (bytes > 0) links_[static_cast<size_t>(process)].out.push_back({const_cast<std::byte*>(data), bytes});
}

void Rail::receive(int64_t process, std::byte* data, uint64_t bytes) {
  if (bytes > 0) links_[static_cast<size_t>(process)].in.push_back({data, bytes});
}

Status Rail::finish() {
  const int64_t processes = group_.size();
  auto lastMove = Clock::now();
  for (;;) {
    bool moved = false, done = true;
    // Each process begins with the next one, so that not all send to the same.
    for (int64_t i = 1; i < processes; ++i) {
      int64_t process = (group_.rank() + i) % processes;
      if (links_[static_cast<size_t>(process)].done()) continue;
      SHEAF_RETURN_IF_ERROR(advance(process, moved));
      done &= links_[static_cast<size_t>(process)].done();
    }
    if (done) return {};
    if (abort_.raised()) return abort_.status();
    if (moved) {
      lastMove = Clock::now();
      continue;
    }
    if (Clock::now() - lastMove > group_.limit()) return late();
    SHEAF_RETURN_IF_ERROR(wait());
  }
}

Status Rail::advance(int64_t process, bool& moved) {
  Link& link = links_[static_cast<size_t>(process)];
  if (link.sent < link.out.size()) {
    msghdr message = messageOf(link.out, link.sent);
    ssize_t count = sendmsg(link.socket.descriptor(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) consume(link.out, link.sent, static_cast<size_t>(count));
    if (count < 0 && !mustWait(count)) return gone(process, systemError());
    moved |= count > 0;
  }
  if (link.received < link.in.size()) {
    msghdr message = messageOf(link.in, link.received);
    // What follows the header may be something else: it is not taken before they agree.
    if (!link.agreed) message.msg_iovlen = 1;
    ssize_t count = recvmsg(link.socket.descriptor(), &message, MSG_DONTWAIT);
    if (count > 0) consume(link.in, link.received, static_cast<size_t>(count));
    if (count == 0) return gone(process, "it was closed");
    if (count < 0 && !mustWait(count)) return gone(process, systemError());
    moved |= count > 0;
    if (!link.agreed && link.received > 0) {
      if (link.header != mine_)
        return Status::error(cat("this process and ", group_.describe(process),
                                 " met in different collectives; the plan is not the same on all ranks"));
      link.agreed = true;
    }
  }
  return {};
}

Status Rail::wait() {
  constexpr size_t kPolled = 128;
  pollfd polled[kPolled];
  size_t count = 0;
  polled[count++] = {wakeup_, POLLIN, 0};
  for (const Link& link : links_) {
    if (link.done() || count == kPolled) continue;
    int events = (link.sent < link.out.size() ? POLLOUT : 0) | (link.received < link.in.size() ? POLLIN : 0);
    polled[count++] = {link.socket.descriptor(), static_cast<short>(events), 0};
  }
  // Where there are more connections than are polled, the others are looked at soon.
  poll(polled, count, count == kPolled ? 1 : static_cast<int>(kLook.count()));
  return abort_.raised() ? abort_.status() : Status();
}

Status Rail::gone(int64_t process, const std::string& why) const {
  for (auto until = Clock::now() + kLastWords; !abort_.raised() && Clock::now() < until;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (abort_.raised()) return abort_.status();
  return Status::error(cat("the connection to ", group_.describe(process), " is broken: ", why));
}

Status Rail::late() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < links_.size(); ++i)
    if (!links_[i].done()) names.push_back(group_.describe(static_cast<int64_t>(i)));
  return Status::error(cat("nothing has come from ", listText(names), " for ",
                           secondsText(static_cast<double>(group_.limit().count()) / 1000), " (SHEAF_TIMEOUT)"));
}

}  // namespace sheaf::comm
