// Library calls for tests.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/Library.h"

namespace sheaf::testing {

using plan::libraryCall;
using Integers = std::vector<std::pair<const char*, int64_t>>;
using Reals = std::vector<std::pair<const char*, double>>;

}  // namespace sheaf::testing
