// What a memory limit forces on every order of a step's instructions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

struct MemoryBound {
  // By node that is a transfer: the nodes that it cannot run beside, because what both need does not fit. Empty: none.
  std::vector<std::vector<bool>> excluded;
  // By node: seconds of it, a gather, that the limit forces: what an earlier gather brought cannot stay until then.
  std::vector<double> forced;
};

// Bytes that are alive during a node in every order: persistent buffers, and those that nodes access which must come
// before it and nodes which must come after it (or it itself). `data`: what must precede what whatever the order;
// within a round it goes forward in the order of the nodes. `limit`: bytes that the arena may have; one that no order
// keeps gives no effect.
MemoryBound memoryBoundOf(const StepModel& model, std::span<const Dependence> data, uint64_t limit);

}  // namespace sheaf::schedule
