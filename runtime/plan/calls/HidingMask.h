// The mask numbers that hide all keys of a query of attention.
#pragma once

namespace sheaf::plan {

// If the largest number of the mask among the keys that a query sees is finite and at most this, the query's
// log-sum-exp is of its scores less that number: next to it the logarithm of the sum of exponentials would be rounded
// away.
inline constexpr float kHidingMask = -1000;

}  // namespace sheaf::plan
