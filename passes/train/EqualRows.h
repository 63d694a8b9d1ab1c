// Replicated values (the same on all ranks) that are combined with rows of the batch. They must not differ between
// rows.
#pragma once

#include <optional>
#include <utility>

#include "ir/Train/TrainDialect.h"
#include "passes/train/BatchState.h"

namespace sheaf::train {

// The state of every value of a step; a missing value is replicated.
using BatchStates = mlir::DenseMap<mlir::Value, BatchState>;

// The first operand that has rows, or null.
mlir::OpOperand* firstSplitOperand(mlir::Operation* op, const BatchStates& states);

// Replicated operands whose dimension `dimension`, the batch's of the first split operand, has the full `size`, not 1.
// `sums`: the result has no rows. Then what rows are added to has none either.
mlir::SmallVector<mlir::OpOperand*> alignedOperands(mlir::Operation* op, const BatchStates& states, int64_t dimension,
                                                    int64_t size, bool sums);

// Operands, with a dimension of each, from which a dimension of the result comes: equal parts of those make equal parts
// of this. An operand of size 1 there is for all parts. Nothing if it is not known. `contiguous`: the dimension is cut
// into ranges; otherwise every element of it counts as a part.
using Sources = mlir::SmallVector<std::pair<unsigned, int64_t>, 2>;
std::optional<Sources> sourcesOf(mlir::Operation* op, int64_t dimension, bool contiguous);

// Whether a dimension of a constant consists of equal parts of `part` elements each. False, too, if the elements are
// not available (a resource).
bool hasEqualParts(ConstantOp constant, int64_t dimension, int64_t part);

// Fails with an error where a value that is computed from a constant, and differs from row to row, meets rows: a range
// of the batch's size, say. Every rank would use what belongs to the first rank's rows.
mlir::LogicalResult checkConstants(mlir::Operation* op, const BatchStates& states, bool sums);

}  // namespace sheaf::train
