// Orders one list of a plan as if it alone were the step.
#pragma once

#include <vector>

#include "passes/schedule/StepModel.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan_ir {

// The model of a step that consists of this list of the plan alone. The plan is changed meanwhile, and restored.
schedule::StepModel modelOfList(plan::Plan& plan, plan::InstructionList& list, const profile::Profile& profile);

// Puts the list of the model into an order. Returns the instructions that are carried into the next round, in order.
std::vector<const plan::Instruction*> reorder(plan::InstructionList& list, const schedule::StepModel& model,
                                              const schedule::Order& order);

// Moves these instructions of the list to its beginning, in their order.
void moveToBegin(plan::InstructionList& list, const std::vector<const plan::Instruction*>& instructions);

}  // namespace sheaf::plan_ir
