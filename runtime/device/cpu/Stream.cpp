#include "runtime/device/cpu/Stream.h"

#include "runtime/base/Spin.h"
#include "runtime/device/cpu/LibraryThreads.h"

namespace sheaf::cpu {
namespace {

// Far more than the instructions of a step on one stream, so that a host that issues whole steps rank by rank seldom
// waits. About 500 KiB if full.
constexpr size_t kQueueLimit = 8192;

}  // namespace

Stream::Stream(std::function<void(const Work&)> execute, int spins) : execute_(std::move(execute)), spins_(spins) {
  Expected<Thread> thread = Thread::start("a stream of a rank", [this] { loop(); });
  status_ = thread.status();
  if (thread.ok()) thread_ = std::move(*thread);
}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  filled_.notify_one();
  thread_.join();
}

void Stream::push(Work work) {
  {
    std::unique_lock lock(mutex_);
    emptied_.wait(lock, [this] { return queue_.size() < kQueueLimit; });
    queue_.push_back(std::move(work));
    pushed_.fetch_add(1, std::memory_order_release);
  }
  filled_.notify_one();
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  emptied_.wait(lock, [this] { return done_ == pushed_.load(std::memory_order_relaxed); });
}

bool Stream::idle() {
  std::lock_guard lock(mutex_);
  return done_ == pushed_.load(std::memory_order_relaxed);
}

void Stream::loop() {
  useOneLibraryThread();
  std::deque<Work> batch;
  for (uint64_t done = 0;;) {
    spinUntil(spins_, [&] { return pushed_.load(std::memory_order_acquire) != done; });
    {
      std::unique_lock lock(mutex_);
      filled_.wait(lock, [this] { return !queue_.empty() || stop_; });
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    emptied_.notify_all();
    for (const Work& work : batch) execute_(work);
    done += batch.size();
    batch.clear();
    {
      std::lock_guard lock(mutex_);
      done_ = done;
    }
    emptied_.notify_all();
  }
}

}  // namespace sheaf::cpu
