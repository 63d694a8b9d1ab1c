// The dimensions of operands and results along which an op can be computed part by part.
#pragma once

#include "ir/Train/TrainDialect.h"

namespace sheaf::train {

// One axis of an op's iteration space. A part of the results along it depends only on the same part of the operands,
// or, where it is summed, the results are the sum of what the parts give.
struct OpAxis {
  // The dimension of each operand and of each result that is the axis; -1: it has none, and all of it is needed.
  // Along one axis sizes may differ by a factor, as those of [batch, ...] and [batch * heads, ...].
  llvm::SmallVector<int64_t, 4> operands, results;
  bool summed = false;
  // The operand that a sum along the axis is added to once; -1: there is none.
  int64_t addedOnce = -1;
};

using ShapeOf = llvm::function_ref<llvm::ArrayRef<int64_t>(mlir::Value)>;

// The axes of an op whose values have the shapes that `shapeOf` says. An op without a rule has none,
// and needs all of its operands. A reshape has none here, since its parts follow from strides (reshapedPlace in
// Place.h); random numbers have none, since they depend on where an element is.
llvm::SmallVector<OpAxis> axesOf(mlir::Operation* op, ShapeOf shapeOf);

// True if the op is linear in operand `operand` alone, so that it makes terms of a sum from terms of a sum.
bool isLinear(mlir::Operation* op, unsigned operand);

}  // namespace sheaf::train
