#include "runtime/plan/Upgrade.h"

#include <vector>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

// The fields of version 3 are deprecated, so that no other file compiles that uses them.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace sheaf::plan {
namespace {

using MutableList = google::protobuf::RepeatedPtrField<Instruction>;

std::vector<MutableList*> listsOf(Plan& plan) {
  std::vector<MutableList*> lists{plan.mutable_prologue(), plan.mutable_body(), plan.mutable_epilogue(),
                                  plan.mutable_evaluation()};
  for (StepPart& part : *plan.mutable_parts()) lists.push_back(part.mutable_instructions());
  return lists;
}

bool hasOldOperands(const Instruction& instruction) {
  auto either = [](const auto& kind) { return kind.has_source() || kind.has_destination(); };
  return instruction.kernel().operands_size() > 0 || instruction.call().operands_size() > 0 ||
         instruction.persist().operands_size() > 0 || either(instruction.collective()) ||
         either(instruction.transfer()) || instruction.input().has_destination() ||
         instruction.scalars().has_destination() || instruction.output().has_source();
}

// A source or a destination that is missing becomes an empty operand, which the verifier refuses.
void moveOperands(Instruction& instruction) {
  auto all = [&](auto* kind) { instruction.mutable_operands()->Swap(kind->mutable_operands()); };
  auto source = [&](auto* kind) {
    instruction.add_operands()->Swap(kind->mutable_source());
    kind->clear_source();
  };
  auto destination = [&](auto* kind) {
    instruction.add_operands()->Swap(kind->mutable_destination());
    kind->clear_destination();
  };
  switch (instruction.kind_case()) {
    case Instruction::kKernel:
      return all(instruction.mutable_kernel());
    case Instruction::kCall:
      return all(instruction.mutable_call());
    case Instruction::kCollective:
      source(instruction.mutable_collective());
      return destination(instruction.mutable_collective());
    case Instruction::kInput:
      return destination(instruction.mutable_input());
    case Instruction::kScalars:
      return destination(instruction.mutable_scalars());
    case Instruction::kOutput:
      return source(instruction.mutable_output());
    case Instruction::kTransfer:
      source(instruction.mutable_transfer());
      return destination(instruction.mutable_transfer());
    case Instruction::kPersist:
      return all(instruction.mutable_persist());
    case Instruction::kRecord:
    case Instruction::kWait:
    case Instruction::KIND_NOT_SET:
      return;
  }
}

}  // namespace

Status upgrade(Plan& plan) {
  constexpr uint32_t kOld = 3, kNew = 4;
  if (plan.version() != kOld && plan.version() != kNew) return {};
  const bool old = plan.version() == kOld;
  for (MutableList* list : listsOf(plan))
    for (Instruction& instruction : *list) {
      if (old ? instruction.operands_size() > 0 : hasOldOperands(instruction))
        return Status::error(cat("the plan is damaged: ", describe(plan, instruction), " has operands of version ",
                                 old ? kNew : kOld, ", but the plan is of version ", plan.version()));
      if (old) moveOperands(instruction);
    }
  plan.set_version(kNew);
  return {};
}

}  // namespace sheaf::plan
