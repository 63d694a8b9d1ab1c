// What `train-assign-fusions` and `train-fuse` know about ops.
#pragma once

#include "ir/Train/TrainDialect.h"

namespace sheaf::train {

// The attribute that holds the number of an op's group.
inline constexpr llvm::StringLiteral kGroupAttr = "train.group";

// Of a kernel's op with the rows of several leaves: [leaves, then of each operand and each result the dimension that
// has the rows and how many times it has those of all leaves; -1 and 0 where it has none].
inline constexpr llvm::StringLiteral kLeafRowsAttr = "train.leaf_rows";

// Reduces the last dimension, and only it.
bool isRowReduction(mlir::Operation* op);
// Sums all dimensions but the last.
bool isColumnReduction(mlir::Operation* op);

// A reshape that keeps the last dimension, and so every row.
bool keepsRows(ReshapeOp op);

// Ops that cost a kernel nothing, so that every kernel that uses the value clones the op: broadcasts, indices,
// splat constants. Reshapes are free too, but outside of a kernel.
bool isFree(mlir::Operation* op);

// Rows and columns of a tensor: the last dimension and all others.
int64_t columnsOf(mlir::Value v);
int64_t rowsOf(mlir::Value v);

// Blocks that a kernel should have at least, for threads to share, and at most, where each writes partial sums.
inline constexpr int64_t kBlocks = 64;
// Rows of a block without partial sums.
int64_t rowsOfBlock(int64_t rows, int64_t columns);

}  // namespace sheaf::train
