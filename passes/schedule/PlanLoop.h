// A plan's step as a loop for the simulator: the cost of each instruction on a machine, and the waits between them.
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
      instructions;  // by op: the index of its instruction in plan::stepInstructions(); records and waits are not ops
};

// The step on profile.ranks() ranks. If that is not the plan's number, each rank keeps its rows and shards are scaled.
// The plan must have passed verifyPlan.
PlanLoop loopOf(const plan::Plan& plan, const profile::Profile& profile);

// Whether the profile has the costs of all transfers between spaces; the error names the profile and what it lacks.
Status checkCosts(const plan::Plan& plan, const profile::Profile& profile);

// What a collective occupies where `ranks` ranks are `ranksPerNode` a node.
Unit linkOf(const profile::Transfer& transfer, int64_t ranks, int64_t ranksPerNode);

// Bytes that a rank sends in a step over each link. A collective of all ranks of several nodes passes through the ranks
// of each node and leaves it once: of what they send together one rank's part goes over the network. Without nodes
// everything stays within one.
struct LinkUse {
  uint64_t nodeBytes = 0, networkBytes = 0;
};
LinkUse linkUseOf(const plan::Plan& plan, const PlanLoop& loop, const profile::Profile& profile);

// True dependences: an op that reads bytes depends on the op that wrote them last, in this round or the one before.
// Every schedule respects them. With distance 0, `from` comes before `to`.
std::vector<Dependence> dataDependences(const plan::Plan& plan, const PlanLoop& loop);

// Bytes of a rank's arena on `ranks` ranks. If that is not the plan's number, an estimate: persistent shards are
// scaled, the rest stays.
uint64_t peakBytes(const plan::Plan& plan, int64_t ranks);

}  // namespace sheaf::schedule
