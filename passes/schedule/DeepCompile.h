// DeepSpeed under DeepCompile as a baseline. docs/schedule.md says how it is modelled, and from which sources.
#pragma once

#include "passes/schedule/BaselineSchedule.h"

namespace sheaf::schedule {

// DeepCompile: its passes at stage 3, or its reductions at stages 1 and 2.
struct DeepCompileKnobs {
  int64_t stage = 3;
  bool prefetch = true, selectiveGather = true;  // passes of stage 3, which run by default
  double reduceBucketSize = 5e8;
};

// `deviceBytes`: of a rank's memory, which its passes plan for; 0: no limit.
BaselineSchedule deepCompileSchedule(const BaselineStep& step, const DeepCompileKnobs& knobs, uint64_t deviceBytes);

}  // namespace sheaf::schedule
