#include "runtime/comm/local/Barrier.h"

#include "runtime/base/Spin.h"

namespace sheaf::comm {

Barrier::Barrier(int64_t ranks, AbortSignal& abort, int spins) : ranks_(ranks), abort_(abort), spins_(spins) {
  abort_.listen([this] {
    // Taking the lock orders the signal before or after a waiter's check, never in between.
    { std::lock_guard lock(mutex_); }
    changed_.notify_all();
  });
}

bool Barrier::wait() {
  uint64_t mine;
  {
    std::lock_guard lock(mutex_);
    mine = generation_.load(std::memory_order_relaxed);
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      generation_.store(mine + 1, std::memory_order_release);
      changed_.notify_all();
      return !abort_.raised();
    }
  }
  auto done = [&] { return generation_.load(std::memory_order_acquire) != mine || abort_.raised(); };
  if (!spinUntil(spins_, done)) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, done);
  }
  return !abort_.raised();
}

}  // namespace sheaf::comm
