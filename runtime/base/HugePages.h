// Sizes of huge pages, for code that maps its own memory.
#pragma once

#include <cstdint>

namespace sheaf {

inline constexpr uint64_t kHugePage = 2 << 20;
// From here on huge pages are asked for: a smaller mapping would only waste memory.
inline constexpr uint64_t kHugeBytes = 4 * kHugePage;

}  // namespace sheaf
