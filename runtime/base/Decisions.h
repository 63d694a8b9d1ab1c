// The words that mark decisions of a plan that programs look for; most are the beginnings of theirs.
#pragma once

#include <string_view>

namespace sheaf {

// Says whether the plan's files can be resumed.
inline constexpr std::string_view kFilesDecision = "files: ";
// Names tensors that are trained and may be buffers.
inline constexpr std::string_view kPossibleBuffers = "perhaps buffers: ";
// Follows the name of an op for which the rows of all leaves are gathered.
inline constexpr std::string_view kNeedsAllRows = ": needs rows of all leaves; ";

}  // namespace sheaf
