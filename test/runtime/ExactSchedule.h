// The shortest period of small steps, by exact search: what the scheduler's orders are measured by.
#pragma once

#include <cstdint>

#include "runtime/schedule/StepModel.h"

namespace sheaf::schedule {

// The shortest period, to a part of 1e-4, of any schedule that respects the model's dependences and runs one op at a
// time on each unit, if computation of a round ends before that of the next begins: cyclic scheduling by branch and
// bound over the disjunctions (Hanen and Munier 1995; Brucker and Kampmeyer 2008). `known`: the period of some
// schedule. Slowdown is not modelled. `nodes` counts the search's nodes.
double exactPeriod(const StepModel& model, double known, int64_t& nodes);

}  // namespace sheaf::schedule
