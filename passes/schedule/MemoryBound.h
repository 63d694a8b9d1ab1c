// Consequences of a memory limit for every order of a step's instructions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

struct MemoryBound {
  // By transfer: the nodes that cannot overlap with it, because both together need more than the limit. Empty: none.
  std::vector<std::vector<bool>> excluded;
  // By gather: its seconds that the limit forces, because what an earlier gather of the same parameters gathered cannot
  // stay. 0 for other nodes.
  std::vector<double> forced;
};

// Uses the bytes that are alive during a node in every order: persistent buffers, and buffers with an access that must
// come before or at the node and another that must come after or at it. `data`: dependences that every order respects;
// with distance 0 they go forward in the order of the nodes. `limit`: bytes of the arena; one that no order meets has
// no effect.
MemoryBound memoryBoundOf(const StepModel& model, std::span<const Dependence> data, uint64_t limit);

}  // namespace sheaf::schedule
