// The first error among the ranks of one process.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::comm {

// Raising it wakes every thread that waits for a peer.
class AbortSignal {
 public:
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  // The first error raised; success if none was.
  Status status() const;
  // Keeps the first error only, then runs the listeners. Safe from any thread.
  void raise(Status error);
  // Called once when an error is raised (at once if one was). Listeners must outlive every use of the signal.
  void listen(std::function<void()> listener);

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> raised_ = false;
  Status status_;
  std::vector<std::function<void()>> listeners_;
};

}  // namespace sheaf::comm
