// The processes of one job: what a launcher (torchrun, mpirun, srun) started. They meet once, then exchange small
// messages in the order in which every one of them calls these functions. Tensors travel by other means (NCCL, sockets
// of their own).
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
  // Number of this process among those of its host, which GPU it takes.
  virtual int64_t localRank() const = 0;
  // Everybody's message, in rank order. `what` names the exchange in errors, and must be the same everywhere. Fails,
  // and does not hang, when a process is gone or does not come within the time limit.
  virtual Expected<std::vector<std::string>> allGather(const std::string& message, const std::string& what) = 0;
  // The same, for process 0 alone: the others get nothing.
  virtual Expected<std::vector<std::string>> gather(const std::string& message, const std::string& what) {
    Expected<std::vector<std::string>> all = allGather(message, what);
    if (all.ok() && rank() != 0) all->clear();
    return all;
  }
  Status barrier(const std::string& what) { return gather("", what).status(); }
  // Calls `lost`, from a thread of its own and soon, with who and why, when another process ends before leave() or says
  // fail(). Each function that was given is called once.
  virtual void watch(std::function<void(const Status&)> lost) = 0;
  // Tells the others that this process cannot go on; from then on its own exchanges fail.
  virtual void fail(const std::string& why) = 0;
  // An orderly end: the others may leave, too.
  virtual Status leave() = 0;

  // For errors: "process 2 (node3)".
  virtual std::string describe(int64_t process) const { return "process " + std::to_string(process); }
  // Numeric, where the others reach a process.
  virtual std::string address(int64_t process) const { return "127.0.0.1"; }
  // How long to wait for another process.
  virtual std::chrono::milliseconds limit() const { return std::chrono::minutes(5); }
};

}  // namespace sheaf::comm
