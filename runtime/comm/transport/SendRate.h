// Limits what a process sends, so that tests and benchmarks have a slow network on one machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace sheaf::comm {

// A link that all channels of a process share: it carries one piece after the other, each at the rate.
class SendRate {
 public:
  using Clock = std::chrono::steady_clock;
  // The longest piece. Channels that send at the same time take turns after each.
  static constexpr uint64_t kPieceBytes = 64 << 10;

  explicit SendRate(double bytesPerSecond) : bytesPerSecond_(bytesPerSecond) {}

  // Reserves the link for a piece that has been there since `since`; returns when it has been carried, which is when it
  // may be sent. A thread that asks late loses nothing: the time since then counts.
  Clock::time_point reserve(uint64_t bytes, Clock::time_point since) {
    const auto taken = std::chrono::duration<double>(static_cast<double>(bytes) / bytesPerSecond_);
    std::lock_guard lock(mutex_);
    free_ = std::max(free_, since) + std::chrono::duration_cast<Clock::duration>(taken);
    return free_;
  }

 private:
  const double bytesPerSecond_;
  std::mutex mutex_;
  Clock::time_point free_;  // when the link has carried all that was reserved
};

}  // namespace sheaf::comm
