// DeepSpeed's ZeRO stages 1 to 3, eager, as baselines.
// docs/schedule.md says how they are modelled, and from which sources.
#pragma once

#include "passes/schedule/BaselineSchedule.h"

namespace sheaf::schedule {

// DeepSpeed's configuration, with its defaults; sizes and distances are in elements of parameters.
struct DeepSpeedKnobs {
  int64_t stage = 3;
  double reduceBucketSize = 5e8;
  bool overlapComm = true;
  bool contiguousGradients = true;
  // Stages 1 and 2.
  double allgatherBucketSize = 5e8;
  bool multiRankBucketAllreduce = true;
  // Stage 3.
  bool leafBlocks = false;  // set_z3_leaf_modules(): a block's parameters are fetched together, else a module's
  double prefetchBucketSize = 5e7;
  double maxLiveParameters = 1e9;
  double maxReuseDistance = 1e9;
  double paramPersistenceThreshold = 1e5;
};

BaselineSchedule deepSpeedSchedule(const BaselineStep& step, const DeepSpeedKnobs& knobs);

}  // namespace sheaf::schedule
