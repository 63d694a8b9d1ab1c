#include "passes/train/OpResult.h"

#include <algorithm>
#include <cmath>

#include "ir/Train/TrainDialect.h"

using namespace mlir;

namespace sheaf::train {
namespace {

// A part of the largest element.
constexpr double kTolerance = 1e-11;

}  // namespace

std::string OpResult::mismatch(const Claim& claim) const {
  const int64_t count = int64_t(leaves.size());
  const int64_t own = claim.kind == Claim::Split ? batch.size() / count : batch.size();
  for (const Tensor* leaf : leaves)
    if (leaf->size() != own)
      return "a leaf has " + std::to_string(leaf->size()) + " elements instead of " + std::to_string(own);
  double scale = 0;
  auto widen = [&](const Tensor& t) {
    for (int64_t e = 0; e < t.size(); ++e)
      if (const double x = std::abs(elementOf(t, e)); std::isfinite(x)) scale = std::max(scale, x);
  };
  widen(batch);
  for (const Tensor* leaf : leaves) widen(*leaf);
  const double tolerance = batch.isFloat() && !isExact ? kTolerance * scale : 0;
  auto differs = [&](double found, double expected) {
    if (std::isnan(expected)) return !std::isnan(found);
    return found != expected && !(std::abs(found - expected) <= tolerance);
  };
  auto fail = [&](int64_t leaf, int64_t e, double found, double expected) {
    return "leaf " + std::to_string(leaf) + " has " + std::to_string(found) + " in place " + std::to_string(e) +
           ", where the batch has " + std::to_string(expected);
  };
  if (claim.kind == Claim::Partial) {
    for (int64_t e = 0; e < batch.size(); ++e) {
      if (!batch.isFloat()) {
        // Integers wrap around at their width.
        uint64_t sum = 0;
        for (const Tensor* leaf : leaves) sum += uint64_t(leaf->i[size_t(e)]);
        const unsigned width = batch.type.getElementTypeBitWidth();
        if ((sum - uint64_t(batch.i[size_t(e)])) << (64 - width) == 0) continue;
      }
      double sum = 0;
      for (const Tensor* leaf : leaves) sum += factor * elementOf(*leaf, e);
      // Terms of 0 / 0 have no sum.
      if (std::isfinite(elementOf(batch, e)) && differs(sum, elementOf(batch, e)))
        return "the leaves' terms add up to " + std::to_string(sum) + " in place " + std::to_string(e) +
               ", where the batch has " + std::to_string(elementOf(batch, e));
    }
    return "";
  }
  for (int64_t v = 0; v < count; ++v) {
    std::string wrong;
    auto look = [&](int64_t own, int64_t e) {
      const double found = factor * elementOf(*leaves[size_t(v)], own);
      if (wrong.empty() && differs(found, elementOf(batch, e))) wrong = fail(v, e, found, elementOf(batch, e));
    };
    if (claim.kind == Claim::Split)
      forPart(batch.type.getShape(), claim.place, count, v, look);
    else
      for (int64_t e = 0; e < batch.size(); ++e) look(e, e);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

bool OpResult::tells(Operation* op) const {
  int64_t telling = 0;
  for (int64_t e = 0; e < batch.size(); ++e) telling += std::isfinite(elementOf(batch, e)) && elementOf(batch, e);
  return (isa<PadOp, MaxPoolGradOp, ScatterAddOp, ScatterOp>(op) ? batch.size() : 4) * telling >= batch.size();
}

bool OpResult::isDistinct(const Claim& claim) const {
  if (claim.kind == Claim::Whole) return true;
  if (claim.kind == Claim::Partial) return !mismatch({Claim::Whole, {}}).empty();
  std::vector<const Tensor*> exchanged = leaves;
  std::rotate(exchanged.begin(), exchanged.begin() + 1, exchanged.end());
  if (OpResult{batch, exchanged, factor, isExact}.mismatch(claim).empty()) return false;
  // Single rows instead of runs, or the other way round.
  Claim other = claim;
  const int64_t own = batch.type.getDimSize(claim.place.dimension) / int64_t(leaves.size());
  other.place.run = claim.place.run > 1 ? 1 : own;
  return other == claim || !mismatch(other).empty();
}

}  // namespace sheaf::train
