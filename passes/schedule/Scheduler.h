// Orders a step that repeats for ever. docs/schedule.md explains the method.
#pragma once

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

struct SchedulerOptions {
  // Most bytes that liveBytes() may give; 0: no limit.
  uint64_t memoryLimit = 0;
  // Gathers under way beyond those whose first use has begun; negative: whatever is best.
  int64_t prefetch = -1;
  // Orders that local search may try after the constructed ones; negative: what is worth it for the size.
  int64_t searches = -1;
};

struct Scheduled {
  Order order;
  Timeline timeline;
  uint64_t bytes = 0;  // liveBytes() of the order; above the limit where none that fits was found
};

// The order with the shortest period found, and among those that take the same time the one with the fewest bytes.
// Deterministic.
Scheduled schedule(const StepModel& model, const SchedulerOptions& options);

}  // namespace sheaf::schedule
