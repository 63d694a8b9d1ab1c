// Orders a step that repeats for ever. docs/schedule.md explains the method.
#pragma once

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

struct SchedulerOptions {
  // Upper bound on liveBytes(); 0 means none.
  uint64_t memoryLimit = 0;
  // Upper bound on the gathers that are issued and whose first use has not begun; negative: the scheduler chooses.
  int64_t prefetch = -1;
  // Orders that local search tries after the constructed ones; negative: by the size of the step.
  int64_t searches = -1;
};

struct Scheduled {
  Order order;
  Timeline timeline;
  uint64_t bytes = 0;  // liveBytes() of the order; above the limit if no order within it was found
};

// The order with the shortest period that was found (of steps with stores, without a limit, that with the smallest
// product of period and live bytes), and of equal ones (see docs/schedule.md) that with the fewest live bytes.
// Deterministic.
Scheduled schedule(const StepModel& model, const SchedulerOptions& options);

}  // namespace sheaf::schedule
