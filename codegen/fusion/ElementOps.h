// One element (or one vector of elements) of each elementwise `train` op.
#pragma once

#include "codegen/fusion/ArithBuilder.h"

namespace sheaf::codegen {

// The type in which a kernel computes with elements of a tensor: f32 for bf16 and f16, signless integers else.
mlir::Type computeType(mlir::Type element, mlir::MLIRContext* context);

// Whether emitElementOp knows the op: it maps elements at the same index to an element.
bool isElementOp(mlir::Operation* op);

// Emits the op on values of the compute types of its operands, all scalars or all vectors of one length. The op may
// live in another context than the builder's.
mlir::Value emitElementOp(ArithBuilder& a, mlir::Operation* op, mlir::ValueRange operands);

}  // namespace sheaf::codegen
