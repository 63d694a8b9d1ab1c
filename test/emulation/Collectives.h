// The order of collectives on an emulated GPU. It is a narrow one, which runs one collective at a time: two of
// different communicators that nothing orders may run in another order on each rank's GPU, and then wait for each other
// for ever.
//
// Rule (NCCL User Guide, "Using multiple NCCL communicators concurrently"): all collectives of a GPU must be serialized
// by streams and events into one order, the same on all ranks, or NCCL_LAUNCH_ORDER_IMPLICIT (from 2.26 on) must make
// that order from the one in which the host issues them. Those of one communicator NCCL orders itself.
#pragma once

#include "test/emulation/Stream.h"

namespace sheaf::emulation {

// The launches of one communicator.
struct Launches {
  std::shared_ptr<Record> last;
};

struct Collective {
  Launches* communicator;
  bool ordered;                 // NCCL orders it after the collective before, of any communicator
  std::function<void()> stuck;  // runs instead if it never begins: waits for the end of the communicator
  std::string name;             // for messages
};
// Appends a collective's work to its stream. Outside of a graph, one that breaks the rule is stuck. In a graph, whose
// collectives run in an order drawn for each device (Capture::run), it is reported, and waits sooner or later.
cudaError_t enqueueCollective(cudaStream_t stream, const Collective& collective, Task task);
// Appends a graph that has collectives.
cudaError_t enqueueCollectives(cudaStream_t stream, Task graph);

}  // namespace sheaf::emulation
