// What a plan's stated floor (plan::StepWork) takes on a machine at its best rates: a lower bound on the step of every
// plan of the same model at the same stage, whatever its instructions. Bound.h has the one for given instructions.
#pragma once

#include <optional>

#include "runtime/plan/plan.pb.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

enum class FloorBy { kProducts, kState, kCommunication };
// "products", "state", "communication".
const char* floorByName(FloorBy by);

// Seconds of a step.
struct Floor {
  double products = 0;       // all matrix products, each type at its best rate, one after the other
  double state = 0;          // what updates read and write, at the best memory bandwidth
  double communication = 0;  // what a rank sends, at the best bandwidth of its link
  double seconds = 0;        // the largest of these
  FloorBy by = FloorBy::kProducts;
};

// On profile.ranks() ranks, each of which keeps its rows; sharded state is scaled. None if the plan states no floor.
std::optional<Floor> floorOf(const plan::Plan& plan, const profile::Profile& profile);

}  // namespace sheaf::schedule
