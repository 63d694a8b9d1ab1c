// Passes that complete a lowered plan, in the order in which finishPlan() in passes/Pipeline.cpp calls them. Passes.td
// describes each.
#pragma once

#include "ir/Plan/Draft.h"
#include "passes/plan/Passes.h"
#include "runtime/base/Status.h"

namespace sheaf::plan_ir {

Status digestDataflow(Draft& draft);
Status offload(Draft& draft, const OffloadOptions& options);
Status copyHostOperands(Draft& draft);
Status scheduleInstructions(Draft& draft, const ScheduleOptions& options);
Status addGenerations(Draft& draft, int64_t generations);
Status insertEvents(Draft& draft, bool placed);
Status elideEvents(Draft& draft);
Status allocateArena(Draft& draft);

}  // namespace sheaf::plan_ir
