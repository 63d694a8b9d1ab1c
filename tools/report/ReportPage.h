// The page of `sheaf report` without its data: the files of this folder and d3, put together when Sheaf is built.
#pragma once

#include <string_view>

namespace sheaf::report {

// HTML; what `sheaf report` adds stands where this marker is.
inline constexpr std::string_view kDataMarker = "<!-- data -->";
std::string_view page();

}  // namespace sheaf::report
