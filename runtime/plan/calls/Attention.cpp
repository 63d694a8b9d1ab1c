#include "runtime/plan/calls/Attention.h"

#include "runtime/base/Text.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::plan {
namespace {

constexpr int64_t kTile = kAttentionQueries * kAttentionKeys;

}  // namespace

Status AttentionShape::check() const {
  if (window > 0 && !causal) return Status::error("only causal attention has a window");
  if (h % g != 0) return Status::error(cat("its ", h, " heads are not a multiple of its ", g, " key heads"));
  if (mask && ((maskB != 1 && maskB != b) || (maskH != 1 && maskH != h)))
    return Status::error(
        cat("its mask is of ", maskB, " sequences and ", maskH, " heads, but must be of 1 or ", b, " and 1 or ", h));
  return Status();
}

uint64_t AttentionShape::packingBytes() const {
  const int64_t width = std::max(d, e);
  return std::max({sgemmPackingBytes(kAttentionQueries, kAttentionKeys, width),
                   sgemmPackingBytes(kAttentionQueries, width, kAttentionKeys),
                   sgemmPackingBytes(kAttentionKeys, width, kAttentionQueries)});
}

uint64_t AttentionCall::scratchPerThread() const {
  if (!isWidened(type)) return scratchOfFloats(kTile);
  // Tiles of query, result, key and value in f32.
  const int64_t width = saturatingMultiply(kAttentionQueries + kAttentionKeys, saturatingAdd(d, e));
  return scratchOfFloats(saturatingAdd(kTile, width));
}

uint64_t AttentionGradCall::scratchPerThread() const {
  int64_t floats = saturatingAdd(2 * kTile, s);
  if (!isWidened(type)) return scratchOfFloats(floats);
  // Query, gradient, key and value tiles in f32, and the three gradients while they grow.
  const int64_t width = saturatingAdd(d, e);
  floats = saturatingAdd(floats, saturatingMultiply(kAttentionQueries + kAttentionKeys, width));
  floats = saturatingAdd(floats, saturatingMultiply(s, d));
  return scratchOfFloats(saturatingAdd(floats, saturatingMultiply(t, width)));
}

uint64_t AttentionGradCall::deviceScratch() const {
  // The dot product of result and gradient of each query, and the base of its scores if there is a mask.
  return scratchOfFloats(saturatingMultiply(mask ? 2 : 1, logSumExpElements(*this)));
}

}  // namespace sheaf::plan
