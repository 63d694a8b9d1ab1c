// What an attention mask lets through, found by evaluating its rows as pieces: a mask that is causal needs no operand.
#pragma once

#include "passes/train/HeadLayout.h"

namespace sheaf::train {

enum class Visibility { all, causal, other };

struct MaskView {
  Visibility visibility;
  int64_t window = 0;  // Of a causal mask: a query sees no more than its last `window` keys; 0: all of them.
  bool operator==(const MaskView&) const = default;
};

// Adding this or less to a score makes its weight vanish; exporters write -1e4, the lowest float or minus infinity.
inline constexpr double maskedBelow = -1e4;

// For a mask of `rows` x `columns` (per batch and head) that is added to the scores after multiplication by `factor`,
// or of a boolean one, true where visible (`inverted`: where not). `other` too if the mask is not made of constants.
MaskView classifyMask(const HeadLayout& mask, int64_t rows, int64_t columns, double factor, bool inverted);

// Returns the most that such a mask may hide: no key, some keys of rows that see others, or all keys of a row. A mask
// that is not made of constants may hide rows, except that floats that are never negative hide nothing.
enum class Hiding { nothing, keys, rows };
Hiding hidingOf(const HeadLayout& mask, int64_t rows, int64_t columns, double factor, bool inverted);

}  // namespace sheaf::train
