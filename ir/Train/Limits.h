// Limits of tensors that a plan computes.
#pragma once

#include <cstdint>

namespace sheaf::train {

inline constexpr int64_t kMaxPlanRank = 8;

}  // namespace sheaf::train
