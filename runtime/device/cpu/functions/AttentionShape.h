// What attention and its gradient share: the shape, where heads lie, and which keys a query sees.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/simd/Halves.h"
#include "runtime/device/cpu/simd/Loops.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cpu {

struct AttentionShape : plan::AttentionShape {
  explicit AttentionShape(const plan::AttentionShape& call)
      : plan::AttentionShape(call),
        half(plan::isWidened(type)),
        loops16(halves(type)),
        factor(static_cast<float>(scale)) {}

  // Keys [0, limit) are all that queries [begin, begin + rows) may see.
  int64_t keyLimit(int64_t begin, int64_t rows) const {
    return causal ? std::clamp<int64_t>(begin + rows + t - s, 0, t) : t;
  }
  // The keys before this one are seen neither by this query nor by later ones.
  int64_t firstKey(int64_t query) const { return window ? std::max<int64_t>(query + t - s + 1 - window, 0) : 0; }
  // Of the keys [begin, begin + keys) the query sees [first, first + count), counted from `begin`.
  struct Seen {
    int64_t first, count;
  };
  Seen seen(int64_t query, int64_t begin, int64_t keys) const {
    if (!causal) return {0, keys};
    const int64_t first = std::clamp<int64_t>(firstKey(query) - begin, 0, keys);
    return {first, std::clamp<int64_t>(query + t - s + 1 - begin, first, keys) - first};
  }
  // `count` rows of `width` elements of an operand, `stride` apart: where they lie, or widened into `scratch`.
  struct Rows {
    const float* data;
    int64_t stride;
  };
  Rows load(const Invocation& invocation, int operand, int64_t offset, int64_t stride, int64_t count, int64_t width,
            float* scratch) const {
    if (!half) return {invocation.operand<float>(operand) + offset, stride};
    const uint16_t* from = invocation.operand<uint16_t>(operand) + offset;
    for (int64_t row = 0; row < count; ++row) loops16.widen(from + row * stride, scratch + row * width, width);
    return {scratch, width};
  }
  // The rows back, rounded, if they were computed in `scratch`.
  void store(const Invocation& invocation, int operand, int64_t offset, int64_t stride, int64_t count, int64_t width,
             const float* scratch) const {
    if (!half) return;
    uint16_t* to = invocation.operand<uint16_t>(operand) + offset;
    for (int64_t row = 0; row < count; ++row) loops16.narrow(scratch + row * width, to + row * stride, width);
  }

  // The mask's [s, t] matrix for a head.
  const float* maskOf(const float* mask, int64_t batch, int64_t head) const {
    return mask + ((maskB == 1 ? 0 : batch) * maskH + (maskH == 1 ? 0 : head)) * s * t;
  }
  // Sets the base of each of `rows` queries, over all keys that it sees: forward and backward subtract the same one.
  void setBases(const float* mask, int64_t query, int64_t rows, float* bases) const {
    for (int64_t row = 0; row < rows; ++row) {
      const Seen keys = seen(query + row, 0, t);
      bases[row] = loops().maskBase(mask + (query + row) * t + keys.first, keys.count);
    }
  }

  const bool half;  // query, key, value, result and gradients are of 16 bits
  const simd::Halves& loops16;
  const float factor;  // scale
};

// Adds a tile of the mask to a tile of scores, then subtracts the base of each row.
inline void addMask(const AttentionShape& shape, const float* mask, const float* bases, int64_t query, int64_t rows,
                    int64_t key, int64_t keys, float* scores) {
  for (int64_t row = 0; row < rows; ++row) {
    float* line = scores + row * plan::kAttentionKeys;
    loops().add(line, mask + (query + row) * shape.t + key, keys);
    if (bases[row] == 0) continue;
    for (int64_t i = 0; i < keys; ++i) line[i] -= bases[row];
  }
}

}  // namespace sheaf::cpu
