// Processes of a job, played by threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/comm/process/ProcessGroup.h"

namespace sheaf::testing {

class ThreadGroup {
 public:
  // Each has an emulated GPU of its own.
  explicit ThreadGroup(int64_t size, std::chrono::milliseconds limit = std::chrono::seconds(300))
      : size_(size), limit_(limit), messages_(static_cast<size_t>(size)) {
    setenv("SHEAF_EMULATED_DEVICES", std::to_string(size).c_str(), 1);
  }
  ~ThreadGroup() { unsetenv("SHEAF_EMULATED_DEVICES"); }

  std::unique_ptr<comm::ProcessGroup> member(int64_t rank) { return std::make_unique<Member>(*this, rank); }
  // What members said with fail().
  std::vector<std::string> failures() {
    std::lock_guard lock(mutex_);
    return failures_;
  }
  // Tells the members that watch that a process is lost.
  void lose(const std::string& why) {
    std::vector<std::function<void(const Status&)>> watchers;
    {
      std::lock_guard lock(mutex_);
      watchers.swap(watchers_);
    }
    for (const auto& lost : watchers) lost(Status::error(why));
  }

  // Whether processes know their number on their host.
  bool numbered = true;

 private:
  class Member : public comm::ProcessGroup {
   public:
    Member(ThreadGroup& group, int64_t rank) : group_(group), rank_(rank) {}
    int64_t rank() const override { return rank_; }
    int64_t size() const override { return group_.size_; }
    std::chrono::milliseconds limit() const override { return group_.limit_; }
    Expected<int64_t> localRank() const override {
      if (!group_.numbered) return Status::error("nothing numbers the processes");
      return rank_;
    }
    Expected<std::vector<std::string>> allGather(const std::string& message, const std::string&) override {
      return group_.allGather(rank_, message);
    }
    void watch(std::function<void(const Status&)> lost) override {
      std::lock_guard lock(group_.mutex_);
      group_.watchers_.push_back(std::move(lost));
    }
    void fail(const std::string& why) override {
      std::lock_guard lock(group_.mutex_);
      group_.failures_.push_back(why);
    }
    Status leave() override { return {}; }

   private:
    ThreadGroup& group_;
    const int64_t rank_;
  };

  Expected<std::vector<std::string>> allGather(int64_t rank, const std::string& message) {
    std::unique_lock lock(mutex_);
    messages_[static_cast<size_t>(rank)] = message;
    const uint64_t mine = generation_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++generation_;
      gathered_ = messages_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, limit_, [&] { return generation_ != mine; })) {
      --arrived_;
      return Status::error("another process does not come");
    }
    return gathered_;
  }

  const int64_t size_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> messages_, gathered_, failures_;
  std::vector<std::function<void(const Status&)>> watchers_;
  int64_t arrived_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace sheaf::testing
