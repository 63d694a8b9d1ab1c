// Compares one result of an op of the batch with those of the leaves.
#pragma once

#include <string>
#include <vector>

#include "ir/Train/Evaluator.h"
#include "passes/train/Claim.h"

namespace sheaf::train {

// Calls f(element of the leaf, element of the batch) for a leaf's part.
template <typename F>
void forPart(llvm::ArrayRef<int64_t> batch, Place place, int64_t leaves, int64_t leaf, F f) {
  const int64_t run = place.run * mlir::ShapedType::getNumElements(batch.drop_front(size_t(place.dimension) + 1));
  for (int64_t e = 0; e < mlir::ShapedType::getNumElements(batch) / leaves; ++e)
    f(e, (e / run * leaves + leaf) * run + e % run);
}

// An element as a number; integers beyond 2^53 are rounded.
inline double elementOf(const Tensor& t, int64_t e) {
  return t.isFloat() ? t.f[size_t(e)] : double(t.i[size_t(e)]);
}

struct OpResult {
  const Tensor& batch;
  const std::vector<const Tensor*> leaves;
  // Each leaf multiplies its result by this.
  double factor;
  // The leaves' floats are those of the batch to the bit; otherwise sums may be rounded in another order.
  bool isExact;

  // Says what is wrong under a claim; empty: nothing.
  std::string mismatch(const Claim& claim) const;
  // True if a quarter of the elements are finite and not zero; of ops that fill up with zeros, any.
  bool tells(mlir::Operation* op) const;
  // True if the claim fails with rotated leaves, with another run, or, for terms, as the whole.
  bool isDistinct(const Claim& claim) const;
};

}  // namespace sheaf::train
