// One element (or one vector of elements) of each elementwise `train` op.
#pragma once

#include "codegen/fusion/ArithBuilder.h"

namespace sheaf::codegen {

// The type in which a kernel computes with elements of a tensor: f32 for bf16 and f16, signless integers else.
mlir::Type computeType(mlir::Type element, mlir::MLIRContext* context);

// Emits a FusableElementwise op on values of the compute types of its operands, all scalars or all vectors of one
// length, as its row in ir/Train/ElementwiseOps.td says. The op may live in another context than the builder's.
mlir::Value emitElementOp(ArithBuilder& a, mlir::Operation* op, mlir::ValueRange operands);

}  // namespace sheaf::codegen
