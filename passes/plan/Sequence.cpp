#include "passes/plan/Sequence.h"

using namespace mlir;

namespace sheaf::plan_ir {

Sequence::Sequence(ProgramOp program, int bodies) {
  for (Operation& op : program.getBody().front()) {
    if (auto section = dyn_cast<PrologueOp>(op)) prologueOp = section;
    if (auto section = dyn_cast<StepOp>(op)) stepOp = section;
    if (auto section = dyn_cast<EpilogueOp>(op)) epilogueOp = section;
  }
  auto append = [&](Region& section) {
    for (Operation& op : section.front()) {
      plan::IssuedInstruction issue;
      issue.stream = streamOf(&op);
      if (auto record = dyn_cast<RecordOp>(op))
        issue.kind = plan::IssuedInstruction::kRecord, issue.event = record.getEvent();
      if (auto wait = dyn_cast<WaitOp>(op)) issue.kind = plan::IssuedInstruction::kWait, issue.event = wait.getEvent();
      streams = std::max(streams, issue.stream + 1);
      if (issue.kind != plan::IssuedInstruction::kOther) events = std::max(events, issue.event + 1);
      instructions.push_back(&op);
      issued.push_back(issue);
    }
  };
  append(prologueOp.getBody());
  firstBody = instructions.size();
  append(stepOp.getBody());
  secondBody = instructions.size();
  for (int body = 1; body < bodies; ++body) append(stepOp.getBody());
  epilogue = instructions.size();
  append(epilogueOp.getBody());
}

ByteRange rangeOf(const Operand& operand, int64_t ranks) {
  return {operand.offset, operand.offset + operand.stride * (ranks - 1) + operand.bytes};
}

bool overlap(const Operand& a, const Operand& b, int64_t ranks) {
  if (a.buffer != b.buffer) return false;
  // With the same stride both move together from rank to rank.
  bool together = a.stride == b.stride;
  ByteRange x = rangeOf(a, together ? 1 : ranks), y = rangeOf(b, together ? 1 : ranks);
  return x.begin < y.end && y.begin < x.end;
}

}  // namespace sheaf::plan_ir
