// The processes of one job, started by a launcher (torchrun, mpirun, srun). They exchange small messages; every process
// calls these functions in the same order. Tensors travel by other means (NCCL, sockets, shared memory).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::comm {

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Index of this process among those of its host; selects its GPU. An error that names the variables to set, where the
  // launcher does not say.
  virtual Expected<int64_t> localRank() const = 0;
  // The messages of all processes, in rank order. `what` names the exchange in errors and must be the same everywhere.
  // An error, never a hang, if a process has ended or does not arrive within the time limit.
  virtual Expected<std::vector<std::string>> allGather(const std::string& message, const std::string& what) = 0;
  // Like allGather, but only process 0 receives the messages.
  virtual Expected<std::vector<std::string>> gather(const std::string& message, const std::string& what) {
    Expected<std::vector<std::string>> all = allGather(message, what);
    if (all.ok() && rank() != 0) all->clear();
    return all;
  }
  Status barrier(const std::string& what) { return gather("", what).status(); }
  // Calls `lost` from another thread, with the process and the reason, when another process ends without leave() or
  // calls fail(). Every registered function is called at most once.
  virtual void watch(std::function<void(const Status&)> lost) = 0;
  // Reports to the other processes that this one has failed. Its own exchanges fail from then on.
  virtual void fail(const std::string& why) = 0;
  // Ends the job in order, together with the other processes.
  virtual Status leave() = 0;
  // Whether leave() has succeeded: all processes have come to the end of the job.
  virtual bool left() const { return false; }
  // A process's number in the whole job, of which this group may be a part.
  virtual int64_t inJob(int64_t process) const { return process; }

  // A process's name in error messages: "process 2 (node3)".
  virtual std::string describe(int64_t process) const { return "process " + std::to_string(process); }
  // The numeric address at which other processes reach a process.
  virtual std::string address(int64_t process) const { return "127.0.0.1"; }
  // Time limit of waiting for another process.
  virtual std::chrono::milliseconds limit() const { return std::chrono::minutes(5); }
};

}  // namespace sheaf::comm
