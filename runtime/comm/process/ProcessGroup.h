// The processes of one job: what a launcher (torchrun, mpirun, srun) started. They meet once, then exchange small
// messages in the order in which every one of them calls these functions. Tensors travel by other means (NCCL).
#pragma once

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
  Status barrier(const std::string& what) { return allGather("", what).status(); }
  // Calls `lost` once, from a thread of its own, with who and why, when another process ends before leave() or says
  // fail().
  virtual void watch(std::function<void(const Status&)> lost) = 0;
  // Tells the others that this process cannot go on.
  virtual void fail(const std::string& why) = 0;
  // An orderly end: the others may leave, too.
  virtual Status leave() = 0;
};

}  // namespace sheaf::comm
