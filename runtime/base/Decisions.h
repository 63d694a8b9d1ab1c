// The beginnings of those decisions of a plan that programs look for.
#pragma once

#include <string_view>

namespace sheaf {

// Says whether the plan's files can be resumed.
inline constexpr std::string_view kFilesDecision = "files: ";
// Names tensors that are trained and may be buffers.
inline constexpr std::string_view kPossibleBuffers = "perhaps buffers: ";

}  // namespace sheaf
