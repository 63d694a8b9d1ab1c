// The shortest period of small steps, by exact search: what the scheduler's orders are measured by.
#pragma once

#include <cstdint>

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

// The shortest period, to a relative precision of 1e-4, of any schedule that respects the model's dependences and runs
// one op at a time on each unit, if the computation of a round ends before that of the next begins: cyclic scheduling
// by branch and bound over the disjunctions (Hanen and Munier 1995; Brucker and Kampmeyer 2008). `limit`: most bytes
// that gathers hold at once, each from its begin to the end of the last op that reads its buffer; other buffers do not
// count; 0: no limit. Sets of gathers that do not fit together are split like other disjunctions (Laborie 2003).
// Infinite where nothing is within the limit. Slowdown is not modelled. `nodes` counts the nodes of the search.
double exactPeriod(const StepModel& model, uint64_t limit, int64_t& nodes);

}  // namespace sheaf::schedule
