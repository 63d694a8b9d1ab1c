// A TCP connection between two processes of a job. It carries frames: a type, a number and bytes.
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
  kHello = 1,     // to process 0: the sender's identity
  kRefusal,       // from process 0: why the sender cannot join
  kWelcome,       // from process 0: all processes of the job
  kContribution,  // to process 0: the sender's part of an exchange
  kResult,        // from process 0: all parts of an exchange
  kFailure,       // why the job ends
  kHeartbeat,     // the sender is alive
  kChallenge,     // from process 0: its nonce
  kProof,         // to process 0: that the sender knows the job's secret
};

struct Frame {
  FrameType type = FrameType::kHeartbeat;
  uint32_t sequence = 0;
  std::string bytes;
};

// Largest frames in bytes: of a connection that has not joined the job, from a process 0 that has not proved yet that
// it is one, and of a process of the job.
inline constexpr uint64_t kMaxGreetingBytes = 4096;
inline constexpr uint64_t kMaxAnswerBytes = uint64_t{64} << 10;
inline constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 30;

class Connection {
 public:
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  // Queues the frame for flush().
  void send(FrameType type, uint32_t sequence, std::string_view bytes);
  // Writes as many queued bytes as the socket accepts now.
  Status flush();
  bool hasUnsent() const { return !unsent_.empty(); }
  // Reads the available bytes and returns complete frames, at most `most` at a time. An error if the bytes are not a
  // frame or the frame is larger than `limit`: frames that came before are returned first.
  Expected<std::vector<Frame>> receive(uint64_t limit, size_t most = SIZE_MAX);
  // There is something for receive() to return, although nothing may come any more.
  bool waiting() const;
  // The other side has closed the connection, or it broke, and receive() has returned all that came before.
  bool ended() const { return closed_ && !waiting(); }
  // Treats the connection as ended.
  void abandon();
  // Closes the sending direction. Bytes already sent still arrive.
  void finish();

  const Socket& socket() const { return socket_; }
  Clock::time_point lastHeard() const { return lastHeard_; }

 private:
  Socket socket_;
  std::string unsent_, received_;
  size_t sent_ = 0;  // bytes of unsent_ that have been written
  bool closed_ = false;
  Clock::time_point lastHeard_ = Clock::now();
};

// Serializes numbers and strings into the bytes of a frame.
class Packer {
 public:
  Packer& number(uint64_t value);
  Packer& string(std::string_view value);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Deserializes what Packer wrote. After a read beyond the end, ok() is false and all further reads give 0 or "".
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}
  uint64_t number();
  std::string string();
  bool ok() const { return ok_; }
  // Whether exactly all bytes have been read.
  bool complete() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace sheaf::comm
