#include "runtime/base/Threads.h"

#include <system_error>

#include "runtime/base/ResourceErrors.h"

namespace sheaf {

Expected<Thread> Thread::start(std::string_view purpose, std::function<void()> body) {
  Thread thread;
  try {
    thread.thread_ = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return outOfThreads(purpose, error.code().value());
  }
  return thread;
}

void Thread::join() {
  if (thread_.joinable()) thread_.join();
}

void Thread::detach() {
  thread_.detach();
}

Expected<std::unique_ptr<WorkerThreads>> WorkerThreads::create(std::string_view purpose, size_t size) {
  std::unique_ptr<WorkerThreads> workers(new WorkerThreads);
  for (size_t i = 0; i < size; ++i) {
    Expected<Thread> thread = Thread::start(purpose, [raw = workers.get(), i] { raw->serve(i); });
    if (!thread.ok()) return thread.status();
    workers->threads_.push_back(std::move(*thread));
  }
  return workers;
}

WorkerThreads::~WorkerThreads() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  started_.notify_all();
  threads_.clear();
}

void WorkerThreads::start(std::function<void(size_t)> work) {
  {
    std::lock_guard lock(mutex_);
    work_ = std::move(work);
    busy_ = threads_.size();
    ++round_;
  }
  started_.notify_all();
}

void WorkerThreads::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return busy_ == 0; });
}

void WorkerThreads::serve(size_t index) {
  for (uint64_t seen = 0;; ++seen) {
    {
      std::unique_lock lock(mutex_);
      started_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (round_ == seen) return;
    }
    work_(index);
    std::lock_guard lock(mutex_);
    if (--busy_ == 0) ended_.notify_all();
  }
}

void runOnThreads(size_t threads, const std::function<void()>& work) {
  std::vector<Thread> others;
  while (others.size() + 1 < threads) {
    Expected<Thread> other = Thread::start("a share of the work", work);
    if (!other.ok()) break;
    others.push_back(std::move(*other));
  }
  work();
}

}  // namespace sheaf
