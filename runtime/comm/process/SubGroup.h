// A group of some processes of a job: consecutive ones, or every n-th one. The job is divided into groups of one size;
// all groups make the same exchanges at the same time.
#pragma once

#include <string>
#include <vector>

#include "runtime/comm/process/ProcessGroup.h"

namespace sheaf::comm {

class SubGroup : public ProcessGroup {
 public:
  // `size` processes that are `stride` apart, this one among them. size * stride must divide the number of processes.
  // The job must outlive the group.
  SubGroup(ProcessGroup& job, int64_t size, int64_t stride = 1)
      : job_(job),
        first_(job.rank() / (size * stride) * (size * stride) + job.rank() % stride),
        size_(size),
        stride_(stride) {}

  int64_t rank() const override { return (job_.rank() - first_) / stride_; }
  int64_t size() const override { return size_; }
  Expected<int64_t> localRank() const override { return job_.localRank(); }
  Expected<std::vector<std::string>> allGather(const std::string& message, const std::string& what) override {
    Expected<std::vector<std::string>> all = job_.allGather(message, what);
    if (!all.ok()) return all;
    std::vector<std::string> ours;
    for (int64_t process = 0; process < size_; ++process)
      ours.push_back(std::move((*all)[static_cast<size_t>(inGroup(process))]));
    return ours;
  }
  void watch(std::function<void(const Status&)> lost) override { job_.watch(std::move(lost)); }
  // A failure of one group fails the whole job.
  void fail(const std::string& why) override { job_.fail(why); }
  Status leave() override { return {}; }
  bool left() const override { return job_.left(); }
  int64_t inJob(int64_t process) const override { return job_.inJob(inGroup(process)); }
  std::string describe(int64_t process) const override { return job_.describe(inGroup(process)); }
  std::string address(int64_t process) const override { return job_.address(inGroup(process)); }
  std::chrono::milliseconds limit() const override { return job_.limit(); }

 private:
  int64_t inGroup(int64_t process) const { return first_ + process * stride_; }

  ProcessGroup& job_;
  const int64_t first_, size_, stride_;
};

}  // namespace sheaf::comm
