#include "passes/plan/Sequence.h"

#include <algorithm>
#include <iterator>

using namespace mlir;

namespace sheaf::plan_ir {

Sequence::Sequence(ProgramOp program, int more) {
  for (Operation& op : program.getBody().front()) {
    if (auto section = dyn_cast<PrologueOp>(op)) prologueOp = section;
    if (auto section = dyn_cast<PartOp>(op)) partOps.push_back(section);
    if (auto section = dyn_cast<StepOp>(op)) stepOp = section;
    if (auto section = dyn_cast<EpilogueOp>(op)) epilogueOp = section;
    if (auto section = dyn_cast<EvaluationOp>(op)) evaluationOp = section;
  }
  uint32_t turn = 0;
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
      turns.push_back(turn);
    }
    ++turn;
  };
  auto runs = program->getAttrOfType<DenseI64ArrayAttr>("turns");
  auto appendStep = [&] {
    for (int64_t i = 0; runs && i < runs.size(); i += 2) append(partOps[runs[i]].getBody());
    append(stepOp.getBody());
  };
  constexpr auto kBodies = std::count(std::begin(plan::kUnrolled), std::end(plan::kUnrolled), plan::Part::kBody);
  std::ptrdiff_t bodies = 0;
  auto appendPart = [&](plan::Part part) {
    switch (part) {
      case plan::Part::kPrologue:
        append(prologueOp.getBody());
        break;
      case plan::Part::kBody:
        firstBody = secondBody;
        secondBody = instructions.size();
        appendStep();
        if (++bodies == kBodies)
          for (int step = 0; step < more; ++step) appendStep();
        break;
      case plan::Part::kEpilogue:
        append(epilogueOp.getBody());
        break;
      case plan::Part::kHost:
        instructions.push_back(nullptr);
        issued.push_back({0, plan::IssuedInstruction::kHost, 0});
        turns.push_back(turn++);
        break;
      case plan::Part::kEvaluation:
        firstEvaluation = secondEvaluation;
        secondEvaluation = instructions.size();
        append(evaluationOp.getBody());
        break;
    }
  };
  for (plan::Part part : plan::kUnrolled) appendPart(part);
  if (evaluationOp)
    for (plan::Part part : plan::kUnrolledEvaluation) appendPart(part);
}

}  // namespace sheaf::plan_ir
