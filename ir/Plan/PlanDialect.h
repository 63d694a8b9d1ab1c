// The `plan` dialect: see PlanOps.td.
#pragma once

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "runtime/plan/plan.pb.h"

#include "ir/Plan/PlanDialect.h.inc"
#define GET_TYPEDEF_CLASSES
#include "ir/Plan/PlanTypes.h.inc"
#define GET_ATTRDEF_CLASSES
#include "ir/Plan/PlanAttrs.h.inc"
#define GET_OP_CLASSES
#include "ir/Plan/PlanOps.h.inc"

namespace sheaf::plan_ir {

// Access to an operand; the numbers are those of plan.proto.
inline constexpr int64_t kTextRead = 1, kTextWrite = 2, kTextReadWrite = 3;

// One operand of an instruction, as read from or written into the op's parallel arrays. `axis`: whose index `stride` is
// multiplied by.
struct TextOperand {
  mlir::Value buffer;
  int64_t offset = 0, bytes = 0, stride = 0, access = kTextRead;
  plan::Axis axis = plan::WORLD;
};

// The operands of any instruction op; empty for ops that have none.
llvm::SmallVector<TextOperand> operandsOf(mlir::Operation* instruction);

// The ranks on an axis of the program.
int64_t ranksOn(ProgramOp program, plan::Axis axis);

// Where a buffer lies.
plan::Buffer::Space spaceOf(BufferOp buffer);
plan::Buffer::Space spaceOf(mlir::Value buffer);

// The stream of any instruction op.
int64_t streamOf(mlir::Operation* instruction);

}  // namespace sheaf::plan_ir
