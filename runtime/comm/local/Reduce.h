// Elementwise sums over the ranks of one process, in rank order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/plan/plan.pb.h"

namespace sheaf::comm {

// Bytes of one element; 0 for an unknown type.
size_t elementBytes(plan::ElementType type);

// Whether sumInRankOrder takes the type.
bool canSum(plan::ElementType type);

// destination[i] = ((sources[0][i] + sources[1][i]) + sources[2][i]) + ... for `count` elements. bf16 and f16 are
// summed in f32 and rounded once. The destination may coincide with one of the sources, but not overlap one otherwise.
void sumInRankOrder(plan::ElementType type, std::span<const std::byte* const> sources, std::byte* destination,
                    uint64_t count);

}  // namespace sheaf::comm
