// The processes of a run: which ranks this one has, and what all of them must agree on before the first step.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/process/TcpProcessGroup.h"

namespace sheaf::exec {

class Job {
 public:
  // Joins the job that the launcher's environment describes; without a launcher, a job of one process. Returns when all
  // processes have joined. After 10 seconds it prints which are missing, unless `quiet`. `lost` (optional) is called
  // once, from another thread, when another process is lost or fails.
  static Expected<std::unique_ptr<Job>> join(const std::atomic<bool>& interrupted, bool quiet,
                                             std::function<void(const std::string& why)> lost);

  int64_t process() const { return group_ ? group_->rank() : 0; }
  int64_t processes() const { return group_ ? group_->size() : 1; }
  // Process 0 logs, prints, and writes the files that are written once.
  bool first() const { return process() == 0; }
  // A warning about the environment, to be printed when the run starts; may be empty.
  const std::string& warning() const { return warning_; }
  // A network is between the processes, and no secret keeps unrelated programs from joining. Process 0 prints
  // kNoSecret.
  bool lacksSecret() const { return group_ && group_->lacksSecret(); }
  static constexpr const char* kNoSecret =
      "the job is on several hosts without SHEAF_SECRET: any program that reaches process 0 can join in place of a "
      "process (docs/cluster.md)";
  // Null in a job of one process.
  comm::ProcessGroup* group() const { return group_.get(); }

  // Shares the ranks: process p of P has [p * ranks / P, (p + 1) * ranks / P).
  Status share(int64_t ranks);
  int64_t firstRank() const { return firstRank_; }
  int64_t localRanks() const { return localRanks_; }

  // Compares what the processes are started with, such as "--steps 5": the error names who differs, and in what.
  // Afterwards it is known how many processes share this machine and the cores that this one may run on, and how many
  // in a row can share memory.
  Status agree(const std::vector<std::string>& facts);
  int64_t processesOnMachine() const { return onMachine_; }
  int64_t processesOnCores() const { return onCores_; }
  int64_t processesPerNode() const { return perNode_; }
  int64_t nodes() const { return processes() / perNode_; }

  // Ends this process's part: leaves in order, or sends the others the reason. Returns the cause: where another process
  // was first to fail, that is its error.
  Status end(Status status);

 private:
  Job() = default;
  // Filled by the group's thread.
  struct Loss {
    std::mutex mutex;
    Status why;
  };

  std::shared_ptr<Loss> loss_ = std::make_shared<Loss>();
  std::string warning_;
  std::unique_ptr<comm::TcpProcessGroup> group_;
  int64_t firstRank_ = 0, localRanks_ = 1, onMachine_ = 1, onCores_ = 1, perNode_ = 1;
};

}  // namespace sheaf::exec
