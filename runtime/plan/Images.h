// Buffers that hold the same bytes in different spaces.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// A transfer makes its buffers images of each other, and so are two generations. By buffer: the least index among its
// images and their images, its own if it has none. Transfers of buffers that are not in the plan do not count.
std::vector<uint32_t> imageGroups(const Plan& plan);

}  // namespace sheaf::plan
