// A plan's body as a loop for the simulator: what each instruction costs on a machine, and what waits for what.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/schedule/Timeline.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

struct PlanLoop {
  Loop loop;
  std::vector<int>
      instructions;  // of each op, its instruction in the body; records and waits take no time and are none
};

// The body on profile.ranks() ranks, which may be another number than the plan was compiled for: a rank's rows stay,
// and what is sharded changes its size. The plan must have passed verifyPlan.
PlanLoop loopOf(const plan::Plan& plan, const profile::Profile& profile);

// What the ops compute with: an op that reads bytes depends on the op that wrote them last, in this round or the one
// before. A schedule may change everything else. `to` may precede `from` in the order of the ops only at a distance.
std::vector<Dependence> dataDependences(const plan::Plan& plan, const PlanLoop& loop);

// Bytes of a rank's arena on so many ranks. For another number than the plan's: persistent sharded state shrinks or
// grows, the rest stays.
uint64_t peakBytes(const plan::Plan& plan, int64_t ranks);

}  // namespace sheaf::schedule
