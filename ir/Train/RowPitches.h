// Where the rows of a value lie: what train-pitch-rows decided.
#pragma once

#include "ir/Train/TrainDialect.h"

namespace sheaf::train {

// The attribute of a matrix product that holds the pitch of its result.
inline constexpr llvm::StringLiteral kPitchAttr = "train.pitch";

// The value that this one is, apart from reshapes that keep the last dimension, and so every row.
mlir::Value withoutReshapes(mlir::Value value);

// Elements in memory from one row to the next; 0 where rows follow each other.
int64_t pitchOf(mlir::Value value);

// Bytes between the rows of a fusion's operands and results.
int64_t paddingBytes(FusionOp fusion);

}  // namespace sheaf::train
