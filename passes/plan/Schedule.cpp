// Orders the instructions of the step, which repeats for ever: see passes/schedule.
#include "passes/plan/Edits.h"
#include "passes/plan/Finish.h"
#include "passes/plan/ListOrder.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/Scheduler.h"
#include "passes/schedule/ShippedProfiles.h"

namespace sheaf::plan_ir {

Status scheduleInstructions(Draft& draft, const ScheduleOptions& options) {
  plan::Plan& plan = draft.plan;
  Expected<profile::Profile> profile = schedule::loadProfile(options.profileName);
  if (!profile.ok()) return profile.status();
  Expected<profile::Profile> scaled = profile->withRanks(plan.ranks());
  if (!scaled.ok()) return scaled.status();
  SHEAF_RETURN_IF_ERROR(schedule::checkCosts(plan, *scaled));
  schedule::SchedulerOptions how;
  how.memoryLimit = options.memoryLimit;
  how.prefetch = options.prefetch;
  for (plan::InstructionList* list : roundsOf(plan)) {
    if (list->empty()) continue;
    const schedule::StepModel model = modelOfList(plan, *list, *scaled);
    const auto carried = reorder(*list, model, schedule::schedule(model, how).order);
    // What a list needs first stands at its own beginning, where it does not follow itself or a batch may be the last.
    if (plan.parts_size() > 0 || list != plan.mutable_body())
      moveToBegin(*list, carried);
    else
      for (const plan::Instruction* instruction : carried) *plan.add_prologue() = *instruction;
  }
  return {};
}

}  // namespace sheaf::plan_ir
