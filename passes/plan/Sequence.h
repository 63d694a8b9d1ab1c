// A plan as the loop it is: prologue, bodies, epilogue in issue order, for analyses of what precedes what.
#pragma once

#include "ir/Plan/PlanDialect.h"
#include "runtime/plan/HappensBefore.h"

namespace sheaf::plan_ir {

struct Sequence {
  explicit Sequence(ProgramOp program, int bodies = 2);

  // Computes happens-before with the waits and records that the plan has now.
  plan::HappensBefore happensBefore() const { return {issued, streams, events}; }

  std::vector<mlir::Operation*> instructions;
  std::vector<plan::IssuedInstruction> issued;
  size_t firstBody = 0, secondBody = 0, epilogue = 0;  // where these parts begin
  uint32_t streams = 0, events = 0;
  PrologueOp prologueOp;
  StepOp stepOp;
  EpilogueOp epilogueOp;
};

// Bytes of a buffer that an operand may touch on some rank.
struct ByteRange {
  int64_t begin, end;
};
ByteRange rangeOf(const Operand& operand, int64_t ranks);

// Whether two operands of one buffer may touch the same bytes on one rank.
bool overlap(const Operand& a, const Operand& b, int64_t ranks);

}  // namespace sheaf::plan_ir
