#include "runtime/plan/Unrolled.h"

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::plan {
namespace {

IssuedInstruction issue(const Instruction& instruction) {
  if (instruction.has_record()) return {instruction.stream(), IssuedInstruction::kRecord, instruction.record().event()};
  if (instruction.has_wait()) return {instruction.stream(), IssuedInstruction::kWait, instruction.wait().event()};
  return {instruction.stream(), IssuedInstruction::kOther, 0};
}

const char* sectionName(Part part) {
  switch (part) {
    case Part::kPrologue:
      return "prologue";
    case Part::kBody:
      return "body";
    case Part::kEvaluation:
      return "evaluation";
    default:
      return "epilogue";
  }
}

}  // namespace

Unrolled::Unrolled(const Plan& plan) : plan_(plan), generations_(plan) {
  int step = 0;
  for (Part part : kUnrolled) append(part, step);
  if (plan.evaluation_size() > 0)
    for (Part part : kUnrolledEvaluation) append(part, step);
}

void Unrolled::append(Part part, int& step) {
  if (part == Part::kHost) {
    sequence_.push_back({nullptr, part, 0, step, {}, odd_});
    issued_.push_back({0, IssuedInstruction::kHost, 0});
    return;
  }
  step += part == Part::kBody || part == Part::kEvaluation;
  auto add = [&](std::string_view name, const InstructionList& list) {
    for (int i = 0; i < list.size(); ++i) {
      sequence_.push_back({&list.Get(i), part, i, step, name, odd_});
      issued_.push_back(issue(list.Get(i)));
      odd_ ^= list.Get(i).has_persist();
    }
  };
  if (part == Part::kPrologue) add(sectionName(part), plan_.prologue());
  if (part == Part::kEpilogue) add(sectionName(part), plan_.epilogue());
  if (part == Part::kEvaluation) add(sectionName(part), plan_.evaluation());
  if (part == Part::kBody)
    for (const StepTurn& turn : stepOf(plan_)) add(turn.name, *turn.list);
}

std::string Unrolled::name(size_t entry) const {
  const Entry& e = sequence_[entry];
  if (!e.instruction) {
    const bool evaluated = entry > 0 && sequence_[entry - 1].part == Part::kEvaluation;
    return cat("the host after the ", sectionName(evaluated ? Part::kEvaluation : Part::kEpilogue), " (on stream ",
               streamName(entry), ")");
  }
  return describe(plan_, e.list, e.index, *e.instruction);
}

std::string Unrolled::streamName(size_t entry) const {
  return plan_.streams(static_cast<int>(issued_[entry].stream)).substr(0, 40);
}

}  // namespace sheaf::plan
