// Tests of what may hang or crash.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>

namespace sheaf::testing {

// Ends the test program if what it guards hangs.
class Deadline {
 public:
  explicit Deadline(std::chrono::seconds seconds)
      : thread_([this, seconds] {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, seconds, [this] { return done_; })) return;
          std::fprintf(stderr, "the test hangs\n");
          _exit(1);
        }) {}
  ~Deadline() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

// Runs `body` in a process of its own, so that a crash and a hang are failures of the test that says what it was.
inline void expectEnds(std::chrono::seconds seconds, const std::function<void()>& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Deadline deadline(seconds);
        body();
        _exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace sheaf::testing
