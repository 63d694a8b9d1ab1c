#include "runtime/device/cpu/ComputePool.h"

#include "runtime/base/Spin.h"

namespace sheaf::cpu {

ComputePool::ComputePool(int threads, int spins, std::function<void()> begin)
    : spins_(spins), begin_(std::move(begin)) {
  helpers_.reserve(threads - 1);
  for (int thread = 1; thread < threads; ++thread) {
    Expected<Thread> helper =
        Thread::start("the computation of a rank (--threads-per-rank)", [this, thread] { help(thread); });
    if (status_ = helper.status(); !status_.ok()) return;
    helpers_.push_back(std::move(*helper));
  }
}

ComputePool::~ComputePool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
  }
  started_.notify_all();
  helpers_.clear();
}

void ComputePool::work(int thread) {
  for (int64_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) call_(function_, item, thread);
}

void ComputePool::share(Call call, void* function, int64_t items) {
  call_ = call;
  function_ = function;
  items_ = items;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(helpers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    round_.fetch_add(1, std::memory_order_release);
  }
  started_.notify_all();
  work(0);
  auto done = [this] { return busy_.load(std::memory_order_acquire) == 0; };
  if (spinUntil(spins_, done)) return;
  std::unique_lock lock(mutex_);
  finished_.wait(lock, done);
}

void ComputePool::help(int thread) {
  if (begin_) begin_();
  for (uint64_t seen = 0;; ++seen) {
    auto next = [&] { return round_.load(std::memory_order_acquire) != seen; };
    if (!spinUntil(spins_, next)) {
      std::unique_lock lock(mutex_);
      started_.wait(lock, next);
    }
    if (stop_) return;
    work(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      // The lock prevents a lost wake-up: the last helper cannot finish between the caller's check and its sleep.
      { std::lock_guard lock(mutex_); }
      finished_.notify_one();
    }
  }
}

}  // namespace sheaf::cpu
