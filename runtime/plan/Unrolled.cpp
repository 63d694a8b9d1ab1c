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

}  // namespace

Unrolled::Unrolled(const Plan& plan) : plan_(plan) {
  int step = 0;
  for (Part part : kUnrolled) {
    if (part == Part::kHost) {
      sequence_.push_back({nullptr, part, 0, step});
      issued_.push_back({0, IssuedInstruction::kHost, 0});
      continue;
    }
    step += part == Part::kBody;
    const auto& list = part == Part::kPrologue ? plan.prologue() : part == Part::kBody ? plan.body() : plan.epilogue();
    for (int i = 0; i < list.size(); ++i) {
      sequence_.push_back({&list.Get(i), part, i, step});
      issued_.push_back(issue(list.Get(i)));
    }
  }
}

std::string Unrolled::name(size_t entry) const {
  const Entry& e = sequence_[entry];
  if (!e.instruction) return cat("the host after the epilogue (on stream ", streamName(entry), ")");
  const char* section = e.part == Part::kPrologue ? "prologue" : e.part == Part::kBody ? "body" : "epilogue";
  return describe(plan_, section, e.index, *e.instruction);
}

std::string Unrolled::streamName(size_t entry) const {
  return plan_.streams(static_cast<int>(issued_[entry].stream)).substr(0, 40);
}

}  // namespace sheaf::plan
