// PyTorch's DistributedDataParallel as a baseline. docs/schedule.md says how it is modelled, and from which sources.
#pragma once

#include "passes/schedule/BaselineSchedule.h"

namespace sheaf::schedule {

// `bucketBytes`: bucket_cap_mb.
BaselineSchedule ddpSchedule(const BaselineStep& step, uint64_t bucketBytes);

}  // namespace sheaf::schedule
