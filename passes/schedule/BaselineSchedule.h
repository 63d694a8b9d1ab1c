// A baseline's schedule of a step, and the simulator that plays it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/schedule/BaselineStep.h"

namespace sheaf::schedule {

// Memory that is held from the begin of one computation to the end of another.
struct HeldBytes {
  uint64_t bytes = 0;
  uint32_t first = 0, last = 0;
};

struct BaselineGather {
  BaselineTransfer transfer;
  BaselineTransfer second;  // follows on the same stream, if it takes time
  uint32_t start = 0;       // it waits for the computation before this one; 0: for the end of the previous step
  uint32_t first = 0;       // the first computation that waits for it
  // The gathered bytes are held from its start to the end of the computation `last`. Gathers that are launched together
  // have several parts.
  struct Part {
    uint64_t bytes = 0;
    uint32_t last = 0;
  };
  std::vector<Part> parts;
  // What precedes it: a read from files to host memory, which is issued with it, and a fetch to the device.
  BaselineMove read = {}, fetch = {};
};

struct BaselineReduction {
  BaselineTransfer transfer;
  uint64_t bytes = 0;  // of gradients, held from the begin of the computation `first` to the reduction's end
  uint32_t first = 0;
  uint32_t ready = 0;                   // it waits for this computation
  BaselineTransfer across;              // follows, if it takes time: the sum over replicas of what is now a shard
  uint64_t elements = 0;                // of all ranks
  BaselineMove store = {}, write = {};  // follow: of the shard to host memory, and from there to files
};

// The update of a part of a rank's state by the host's processors.
struct BaselineHostUpdate {
  BaselineMove read;   // of state from files, before it
  double seconds = 0;  // of the update
  BaselineMove write;  // of state to files, after it
  BaselineMove back;   // of updated parameters to the device, after it
  int64_t after = -1;  // the reduction whose store it waits for; negative: for all of them and the norm
};

struct BaselineSchedule {
  std::string knobs;
  std::vector<BaselineGather> gathers;        // in the order in which they are issued, on a stream of their own
  std::vector<BaselineReduction> reductions;  // the same
  // Sums over replicas run on a stream of their own, and neither computation nor memory waits for them before the
  // update. Otherwise they are part of their reduction.
  bool replicasApart = false;
  // Computation does not go on past the `ready` of a reduction before the one that was issued `pending` before it is
  // done: 0 waits for the reduction itself. Negative: computation never waits.
  int64_t pending = -1;
  BaselineTransfer norm;                           // collectives of the gradients' norm, before the update
  double updateSeconds = 0;                        // the optimizer, when everything is reduced
  std::vector<BaselineTransfer> gathersOfUpdated;  // of updated parameters, one after the other
  // On the host, one after the other in this order. A read waits for the update before it, and what follows a write for
  // its end, unless they are pipelined: then one is under way next to an update.
  std::vector<BaselineHostUpdate> hostUpdates;
  bool pipelineRead = false, pipelineWrite = false;
  uint64_t constantBytes = 0;             // held all the time
  uint64_t hostBytes = 0, fileBytes = 0;  // of a rank in other spaces
  std::vector<HeldBytes> held;
};

struct BaselineCost {
  double seconds = 0;  // of a step in the steady state
  uint64_t bytes = 0;  // largest sum of what is held at once on the device; no fragmentation
  uint64_t hostBytes = 0, fileBytes = 0;
};

// Gathers, reductions and computation share the machine as in any Loop. The next step begins when the updates and the
// gathers of updated parameters are done.
BaselineCost playBaselineSchedule(const BaselineStep& step, const BaselineSchedule& schedule);

}  // namespace sheaf::schedule
