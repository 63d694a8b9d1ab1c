// The memory that ranks take to exchange sums with other nodes (ProcessCommunicator.h), computed from the plan.
#pragma once

#include <cstdint>

#include "runtime/plan/plan.pb.h"

namespace sheaf::comm {

// Bytes that each rank takes for one communicator of the plan to receive values that it sums; none where all ranks that
// meet in it are on one node. `nodes`: those that share memory, not the plan's.
uint64_t exchangeBytes(const plan::Plan& plan, uint32_t communicator, int64_t nodes);
// The same for all communicators.
uint64_t exchangeBytes(const plan::Plan& plan, int64_t nodes);

}  // namespace sheaf::comm
