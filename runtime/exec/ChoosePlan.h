// Of several plans that compute the same bits, the one for as many ranks as there are processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::exec {

// The path of the plan for `ranks` ranks; of several the first. An error if the plans do not compute the same bits, by
// what they state that they were compiled from, or if none is for so many ranks: it lists the numbers there are. The
// plan that is chosen is still to be proved.
Expected<std::string> choosePlan(const std::vector<std::string>& plans, int64_t ranks);

}  // namespace sheaf::exec
