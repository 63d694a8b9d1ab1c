// A TCP connection between two processes of a job that carries frames: a type, a number, some bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {

enum class FrameType : uint32_t {
  kHello = 1,     // to process 0: who I am
  kRefusal,       // from process 0: why you do not belong here
  kWelcome,       // from process 0: who we are
  kContribution,  // to process 0: my part of an exchange
  kResult,        // from process 0: everybody's
  kFailure,       // why the job ends
  kHeartbeat,     // I am alive
};

struct Frame {
  FrameType type = FrameType::kHeartbeat;
  uint32_t sequence = 0;
  std::string bytes;
};

// Bytes of a frame that anybody who connects may send, and that a process of the job may.
inline constexpr uint64_t kMaxGreetingBytes = 4096;
inline constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 30;

class Connection {
 public:
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  // Appends the frame to what flush() writes.
  void send(FrameType type, uint32_t sequence, std::string_view bytes);
  // Writes as much as the socket takes now.
  Status flush();
  bool hasUnsent() const { return !unsent_.empty(); }
  // Reads what is there and returns the frames that are whole, at most so many (the rest keeps). An error: what came is
  // no frame, or one larger than `limit`; then, and when the other side has closed (see ended), nothing more is to be
  // read.
  Expected<std::vector<Frame>> receive(uint64_t limit, size_t most = SIZE_MAX);
  bool ended() const { return ended_; }
  // Nothing more is expected of the other side.
  void abandon() { ended_ = true; }
  // No more will be sent; what was sent still arrives.
  void finish();

  const Socket& socket() const { return socket_; }
  Clock::time_point lastHeard() const { return lastHeard_; }

 private:
  Socket socket_;
  std::string unsent_, received_;
  size_t sent_ = 0;  // of unsent_
  bool ended_ = false;
  Clock::time_point lastHeard_ = Clock::now();
};

// The bytes of a frame: numbers and strings one after the other.
class Packer {
 public:
  Packer& number(uint64_t value);
  Packer& string(std::string_view value);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads them back. After a read beyond the end, ok() is false and everything else read is 0 or empty.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}
  uint64_t number();
  std::string string();
  bool ok() const { return ok_; }
  // Everything was read, and nothing beyond.
  bool complete() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace sheaf::comm
