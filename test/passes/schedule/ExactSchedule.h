// The shortest period of small steps, by exact search: what the scheduler's orders are measured by.
#pragma once

#include <cstdint>

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

// The shortest period, to a part of 1e-4, of any schedule that respects the model's dependences and runs one op at a
// time on each unit, if computation of a round ends before that of the next begins: cyclic scheduling by branch and
// bound over the disjunctions (Hanen and Munier 1995; Brucker and Kampmeyer 2008). `limit`: most bytes that are alive
// at once, a buffer that a gather writes from the gather's begin to the end of the last op that reads it; other buffers
// do not count; 0: no limit. Sets of lives that do not fit are split like other disjunctions (Laborie 2003). `known`:
// the period of some schedule. Slowdown is not modelled. `nodes` counts the search's nodes.
double exactPeriod(const StepModel& model, uint64_t limit, double known, int64_t& nodes);

}  // namespace sheaf::schedule
