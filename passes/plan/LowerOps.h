// Lowers ops of the `train` dialect, by a function for each; LowerCalls.cpp has the others.
#pragma once

#include "passes/plan/CallShapes.h"
#include "passes/plan/Lowering.h"

namespace sheaf::plan_ir {

// LowerMoves.cpp
mlir::LogicalResult lower(Lowering& l, train::SliceOp op);
mlir::LogicalResult lower(Lowering& l, train::ConcatOp op);
mlir::LogicalResult lower(Lowering& l, train::ReshapeOp op);
mlir::LogicalResult lower(Lowering& l, train::TransposeOp op);
mlir::LogicalResult lower(Lowering& l, train::ReverseOp op);
mlir::LogicalResult lower(Lowering& l, train::PadOp op);

inline int64_t product(llvm::ArrayRef<int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

// Elements of a token of an attention operand [B, S, H, D].
inline int64_t tokenElements(mlir::Value value) {
  return product(tensor(value).getShape().take_back(2));
}

}  // namespace sheaf::plan_ir
