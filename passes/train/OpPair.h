// An op of the batch, the op that each leaf computes for it, and what is claimed of their values.
#pragma once

#include <string>

#include "ir/Train/TrainDialect.h"
#include "passes/train/Claim.h"

namespace sheaf::train {

struct OpPair {
  mlir::Operation *batch, *leaf;
  llvm::SmallVector<Claim> operands, results;
  // A leaf multiplies its first result by this.
  double factor = 1;
};

// Shapes of a pair's values in the batch, and the claims at these shapes.
struct PairShapes {
  llvm::SmallVector<llvm::SmallVector<int64_t>> operands, results;
  llvm::SmallVector<Claim> operandClaims, resultClaims;
};

PairShapes shapesOf(const OpPair& pair);

// The shape of what a leaf has; nothing where a dimension does not divide so.
std::optional<llvm::SmallVector<int64_t>> leafShape(llvm::ArrayRef<int64_t> batch, const Claim& claim, int64_t leaves);

// True if the result has an extra first dimension, with one sum for each leaf.
bool hasLeavesInFront(mlir::Operation* batch);

// The same op at smaller sizes. A dimension shrinks only if the op treats its entries alike: along an axis (OpAxes.h),
// or where it looks at all of them. What an attribute measures keeps its size, and so does the number of leaves.
PairShapes smallerShapes(const OpPair& pair, int64_t leaves);

// "all of it", "a term of it", "its part along dimension 1, in runs of 2".
std::string describe(const Claim& claim);

}  // namespace sheaf::train
