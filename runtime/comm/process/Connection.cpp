#include "runtime/comm/process/Connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/Text.h"

namespace sheaf::comm {
namespace {

constexpr uint32_t kMagic = 0x31464853;  // "SHF1"
constexpr size_t kReadBytes = 1 << 16;
// Most bytes read by one call, so that a fast sender does not delay the other connections.
constexpr size_t kReadsAtOnce = 64;

struct Header {
  uint32_t magic, type, sequence, size;
};

bool isFrame(const Header& header) {
  return header.magic == kMagic && header.type >= static_cast<uint32_t>(FrameType::kHello) &&
         header.type <= static_cast<uint32_t>(FrameType::kProof);
}

}  // namespace

void Connection::send(FrameType type, uint32_t sequence, std::string_view bytes) {
  Header header{kMagic, static_cast<uint32_t>(type), sequence, static_cast<uint32_t>(bytes.size())};
  unsent_.append(reinterpret_cast<const char*>(&header), sizeof header);
  unsent_.append(bytes);
}

Status Connection::flush() {
  while (sent_ < unsent_.size()) {
    ssize_t count =
        ::send(socket_.descriptor(), unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (count < 0) return Status::error(systemError());
    sent_ += static_cast<size_t>(count);
  }
  unsent_.clear();
  sent_ = 0;
  return {};
}

void Connection::finish() {
  shutdown(socket_.descriptor(), SHUT_WR);
}

Expected<std::vector<Frame>> Connection::receive(uint64_t limit, size_t most) {
  char piece[kReadBytes];
  // More is read when the frames that are here have been returned.
  for (size_t reads = 0; reads < kReadsAtOnce && !closed_ && received_.size() < limit + sizeof(Header); ++reads) {
    ssize_t count = recv(socket_.descriptor(), piece, sizeof piece, MSG_DONTWAIT);
    if (count > 0) {
      received_.append(piece, static_cast<size_t>(count));
      lastHeard_ = Clock::now();
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    closed_ = true;  // by the other side, or broken
  }
  std::vector<Frame> frames;
  size_t at = 0;
  Header header;
  while (frames.size() < most && received_.size() - at >= sizeof header) {
    std::memcpy(&header, received_.data() + at, sizeof header);
    if (!isFrame(header) || header.size > limit) {
      if (!frames.empty()) break;
      abandon();
      return Status::error("it does not use the protocol of sheaf-run");
    }
    if (received_.size() - at - sizeof header < header.size) break;
    frames.push_back(
        {static_cast<FrameType>(header.type), header.sequence, received_.substr(at + sizeof header, header.size)});
    at += sizeof header + header.size;
  }
  received_.erase(0, at);
  return frames;
}

bool Connection::waiting() const {
  Header header;
  if (received_.size() < sizeof header) return false;
  std::memcpy(&header, received_.data(), sizeof header);
  return !isFrame(header) || received_.size() - sizeof header >= header.size;
}

void Connection::abandon() {
  closed_ = true;
  received_.clear();
}

Packer& Packer::number(uint64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

Packer& Packer::string(std::string_view value) {
  number(value.size());
  bytes_.append(value);
  return *this;
}

uint64_t Unpacker::number() {
  uint64_t value = 0;
  if (ok_ = ok_ && rest_.size() >= sizeof value; !ok_) return 0;
  std::memcpy(&value, rest_.data(), sizeof value);
  rest_.remove_prefix(sizeof value);
  return value;
}

std::string Unpacker::string() {
  uint64_t size = number();
  if (ok_ = ok_ && size <= rest_.size(); !ok_) return {};
  std::string value(rest_.substr(0, size));
  rest_.remove_prefix(size);
  return value;
}

}  // namespace sheaf::comm
