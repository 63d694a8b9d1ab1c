// A group of consecutive processes of a job. The job is divided into groups of one size; all groups make the same
// exchanges at the same time.
#pragma once

#include <string>
#include <vector>

#include "runtime/comm/process/ProcessGroup.h"

namespace sheaf::comm {

class SubGroup : public ProcessGroup {
 public:
  // `size` must divide the number of processes. The job must outlive the group.
  SubGroup(ProcessGroup& job, int64_t size) : job_(job), first_(job.rank() / size * size), size_(size) {}

  int64_t rank() const override { return job_.rank() - first_; }
  int64_t size() const override { return size_; }
  int64_t localRank() const override { return job_.localRank(); }
  Expected<std::vector<std::string>> allGather(const std::string& message, const std::string& what) override {
    Expected<std::vector<std::string>> all = job_.allGather(message, what);
    if (!all.ok()) return all;
    return std::vector<std::string>(all->begin() + first_, all->begin() + first_ + size_);
  }
  void watch(std::function<void(const Status&)> lost) override { job_.watch(std::move(lost)); }
  // A failure of one group fails the whole job.
  void fail(const std::string& why) override { job_.fail(why); }
  Status leave() override { return {}; }
  std::string describe(int64_t process) const override { return job_.describe(first_ + process); }
  std::string address(int64_t process) const override { return job_.address(first_ + process); }
  std::chrono::milliseconds limit() const override { return job_.limit(); }

 private:
  ProcessGroup& job_;
  const int64_t first_, size_;
};

}  // namespace sheaf::comm
