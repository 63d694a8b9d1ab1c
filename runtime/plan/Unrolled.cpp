#include "runtime/plan/Unrolled.h"

#include <algorithm>
#include <iterator>

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

constexpr auto kSteps = std::count(std::begin(kUnrolled), std::end(kUnrolled), Part::kBody);

}  // namespace

Unrolled::Unrolled(const Plan& plan, int more) : plan_(plan), generations_(plan) {
  for (Part part : kUnrolled) {
    append(part);
    if (part == Part::kBody && steps_ == kSteps)
      for (int step = 0; step < more; ++step) append(part);
  }
  if (plan.evaluation_size() > 0)
    for (Part part : kUnrolledEvaluation) append(part);
}

void Unrolled::append(Part part) {
  if (part == Part::kHost) {
    sequence_.push_back({nullptr, part, 0, steps_, {}, odd_, runs_++});
    issued_.push_back({0, IssuedInstruction::kHost, 0});
    return;
  }
  if (part == Part::kBody && steps_ < kSteps) step_ = {step_.end, size()};
  if (part == Part::kEvaluation) evaluation_ = {evaluation_.end, size()};
  steps_ += part == Part::kBody || part == Part::kEvaluation;
  if (part == Part::kPrologue) appendList(sectionName(part), part, plan_.prologue());
  if (part == Part::kEpilogue) appendList(sectionName(part), part, plan_.epilogue());
  if (part == Part::kEvaluation) appendList(sectionName(part), part, plan_.evaluation());
  if (part == Part::kBody)
    for (const StepTurn& turn : stepOf(plan_)) appendList(turn.name, part, *turn.list);
}

void Unrolled::appendList(std::string_view name, Part part, const InstructionList& list) {
  for (int i = 0; i < list.size(); ++i) {
    const Instruction& instruction = list.Get(i);
    sequence_.push_back({&instruction, part, i, steps_, name, odd_, runs_});
    const IssuedInstruction& issued = issued_.emplace_back(issue(instruction));
    streams_ = std::max(streams_, issued.stream + 1);
    if (issued.kind != IssuedInstruction::kOther) events_ = std::max(events_, issued.event + 1);
    odd_ ^= instruction.has_persist();
  }
  ++runs_;
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
