// Values that are the same on all ranks and meet rows of the batch: they must be the same for every row.
#pragma once

#include "ir/Train/TrainDialect.h"
#include "passes/train/BatchState.h"

namespace sheaf::train {

// What every value of a step is to the global batch.
using BatchStates = mlir::DenseMap<mlir::Value, BatchState>;

// The first operand that has rows, or null.
mlir::OpOperand* firstWithRows(mlir::Operation* op, const BatchStates& states);

// Operands without rows in which the batch's dimension of firstWithRows, which has the given size, is written out.
// `sums`: the result is a sum over rows.
mlir::SmallVector<mlir::OpOperand*> operandsAlongRows(mlir::Operation* op, const BatchStates& states, int64_t size,
                                                      bool sums);

// Whether a dimension of a constant consists of equal parts of `part` elements each. False, too, if the elements are
// not available (a resource).
bool hasEqualParts(ConstantOp constant, int64_t dimension, int64_t part);

// Fails with an error where a constant that meets rows has other elements for each of them, as a range of their number
// does: of the rows of the global batch, every rank would take the first ones.
mlir::LogicalResult checkConstants(mlir::Operation* op, const BatchStates& states, bool sums);

}  // namespace sheaf::train
