// Host memory of a fixed size through which a snapshot goes to a file: one thread copies into it, another takes the
// bytes out in the same order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>

namespace sheaf::exec {

class StagingRing {
 public:
  // `bytes`: a multiple of plan::kStagingAlignment. All of it is touched at once, so that no later copy waits for the
  // system's memory.
  explicit StagingRing(uint64_t bytes);
  uint64_t bytes() const { return bytes_; }

  // Before a snapshot: empty, and open.
  void open();
  // Both sides stop waiting and get nothing more.
  void close();

  // For the thread that copies: waits for room for some of the next `most` bytes, and returns it; empty after close().
  // It begins at, and unless it is the last of `most` bytes ends at, a multiple of the alignment. filled() says that
  // it is filled.
  std::span<std::byte> room(uint64_t most);
  void filled(std::span<const std::byte> bytes);

  // For the thread that writes: waits for bytes, and returns them; empty after close(). taken() gives their room back.
  std::span<const std::byte> take();
  void taken();

 private:
  const uint64_t bytes_;
  const std::unique_ptr<std::byte[]> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::span<const std::byte>> full_;
  uint64_t next_ = 0, used_ = 0;  // where room begins, and bytes that are in use
  bool closed_ = true;
};

}  // namespace sheaf::exec
