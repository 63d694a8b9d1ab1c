// The shortest period of tiny steps, by trying every order: an oracle for the exact search and the scheduler that
// shares nothing with them but the simulator.
#pragma once

#include <cstdint>

#include "passes/schedule/StepModel.h"

namespace sheaf::schedule {

// The shortest period that Timeline finds for any order of the computation, any order of the transfers, and any of the
// rounds before, same and next for each transfer: the instance of a transfer that a body issues may be that of another
// round. At most 7 nodes. `limit`: most bytes that gathers hold at once, each from its begin to the end of the last
// computation that reads its buffer; then each gather also waits for any computation, so that it can be put off; 0: no
// limit. Infinite if no order is within the limit. `orders` counts the orders that were played.
double exhaustivePeriod(const StepModel& model, uint64_t limit, int64_t& orders);

}  // namespace sheaf::schedule
