// Elementwise sums over ranks, in the order of one fixed tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/plan/ElementTypes.h"

namespace sheaf::comm {

// True if sumOverRanks takes the type.
constexpr bool canSum(plan::ElementType type) {
  return plan::factsOf(type).summed;
}

// destination[i] = the sum of sources[rank][i], for `count` elements. Of q * 2^k ranks, q odd, every 2^k consecutive
// ones are added by a balanced binary tree, and the q results from left to right: of four (0 + 1) + (2 + 3), of six
// ((0 + 1) + (2 + 3)) + (4 + 5). A part of the ranks whose number is a power of two can thus be summed first, wherever
// it is. Sums of bf16 and f16 are formed in f32 and rounded at every addition, so that they can be sent on in their
// type. The destination may coincide with one of the sources, but not overlap one otherwise.
//
// With `continues` the q results are added to what the destination holds, from left to right: it coincides with no
// source then. So a sum over q * 2^k ranks is the same as a sum over 2^k ranks at a time.
void sumOverRanks(plan::ElementType type, std::span<const std::byte* const> sources, std::byte* destination,
                  uint64_t count, bool continues = false);

}  // namespace sheaf::comm
