// A plan as the loop it is, unrolled in issue order (plan::kUnrolled, plan::kUnrolledEvaluation), for analyses of what
// precedes what.
#pragma once

#include "ir/Plan/PlanDialect.h"
#include "runtime/plan/HappensBefore.h"

namespace sheaf::plan_ir {

struct Sequence {
  // With `more` steps after the two of the steady state. A step's turns precede its body.
  explicit Sequence(ProgramOp program, int more = 0);

  // Computes happens-before with the waits and records that the plan has now.
  plan::HappensBefore happensBefore() const { return {issued, streams, events}; }

  std::vector<mlir::Operation*> instructions;  // null: the host
  std::vector<plan::IssuedInstruction> issued;
  std::vector<uint32_t> turns;                       // of each instruction: which list of the run it is in
  size_t firstBody = 0, secondBody = 0;              // where the two steps of the steady state begin
  size_t firstEvaluation = 0, secondEvaluation = 0;  // and the two batches of the evaluation, if there is one
  uint32_t streams = 1, events = 0;
  PrologueOp prologueOp;
  StepOp stepOp;
  EpilogueOp epilogueOp;
  llvm::SmallVector<PartOp> partOps;
  EvaluationOp evaluationOp;  // null: there is none
};

}  // namespace sheaf::plan_ir
