// Of several plans that compute the same bits, the one for as many ranks as there are processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Proof.h"

namespace sheaf::exec {

struct ChosenPlan {
  std::string path;
  std::vector<std::string> notes;  // what was not compared
};

// The plan for `ranks` ranks; of several the first. An error if the plans do not compute the same bits, by
// plan::comparePlans(), or if none is for so many ranks: it lists the numbers there are. The plan that is chosen is
// still to be proved.
Expected<ChosenPlan> choosePlan(const std::vector<std::string>& plans, int64_t ranks, plan::Undigested undigested);

}  // namespace sheaf::exec
