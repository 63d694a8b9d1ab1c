#include "passes/plan/ListOrder.h"

#include <algorithm>

#include "passes/plan/Edits.h"

namespace sheaf::plan_ir {

schedule::StepModel modelOfList(plan::Plan& plan, plan::InstructionList& list, const profile::Profile& profile) {
  google::protobuf::RepeatedPtrField<plan::StepPart> parts;
  google::protobuf::RepeatedPtrField<plan::Turn> turns;
  auto exchange = [&] {
    parts.Swap(plan.mutable_parts());
    turns.Swap(plan.mutable_turns());
    if (&list != plan.mutable_body()) plan.mutable_body()->Swap(&list);
  };
  exchange();
  schedule::StepModel model = schedule::modelOf(plan, profile);
  exchange();
  return model;
}

std::vector<const plan::Instruction*> reorder(plan::InstructionList& list, const schedule::StepModel& model,
                                              const schedule::Order& order) {
  OpenList open(list);
  std::vector<OpenList::Place> places;
  for (OpenList::Place at = open.begin(); at != open.end(); ++at) places.push_back(at);
  std::vector<const plan::Instruction*> carried;
  for (uint32_t node : order.nodes) {
    const OpenList::Place place = places[model.nodes[node].instruction];
    open.move(place, open.end());
    if (order.carried[node]) carried.push_back(place->get());
  }
  return carried;
}

void moveToBegin(plan::InstructionList& list, const std::vector<const plan::Instruction*>& instructions) {
  OpenList open(list);
  OpenList::Place rest = open.begin();
  for (const plan::Instruction* instruction : instructions) {
    const OpenList::Place place =
        std::find_if(rest, open.end(), [&](const auto& other) { return other.get() == instruction; });
    if (place == rest)
      ++rest;
    else
      open.move(place, rest);
  }
}

}  // namespace sheaf::plan_ir
