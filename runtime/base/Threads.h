// Every thread of Sheaf is started here: one that the system refuses is an error, which says what it was for.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf {

// A thread that is joined when it is destroyed.
class Thread {
 public:
  // `purpose` completes the error "cannot start a thread for ...".
  static Expected<Thread> start(std::string_view purpose, std::function<void()> body);
  Thread() = default;
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept {
    join();
    thread_ = std::move(other.thread_);
    return *this;
  }
  ~Thread() { join(); }

  // Returns at once if there is no thread.
  void join();
  // Leaves it alone: it may end later, or never, and must own what it uses.
  void detach();

 private:
  std::thread thread_;
};

// Worker threads created in advance, so that a run does not fail later because the system refuses one.
class WorkerThreads {
 public:
  static Expected<std::unique_ptr<WorkerThreads>> create(std::string_view purpose, size_t size);
  // Waits for the work.
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  size_t size() const { return threads_.size(); }
  // Calls work(0) to work(size() - 1), each on a thread of its own. Not to be called again before wait() has returned.
  void start(std::function<void(size_t)> work);
  // Returns when all calls have returned; at once if there are none.
  void wait();
  void runAll(std::function<void(size_t)> work) {
    start(std::move(work));
    wait();
  }

 private:
  WorkerThreads() = default;
  void serve(size_t index);

  std::mutex mutex_;
  std::condition_variable started_, ended_;
  std::function<void(size_t)> work_;
  uint64_t round_ = 0;
  size_t busy_ = 0;
  bool stop_ = false;
  std::vector<Thread> threads_;
};

// Calls work() on this thread and on `threads` - 1 others together, on fewer if the system refuses them: the calls must
// share what there is to do. Returns when all have returned.
void runOnThreads(size_t threads, const std::function<void()>& work);

}  // namespace sheaf
