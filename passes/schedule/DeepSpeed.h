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
  // MiCS: neighbours that share the state, which the others replicate (mics_shard_size); 0: all ranks. Where they are
  // on several nodes, gathers take one hop between the nodes and one within them (mics_hierarchical_params_gather).
  int64_t micsShardSize = 0;
  bool hierarchicalGather = false;
  // ZeRO++: neighbours that keep a second copy of the parameters among them after the forward pass and gather it in the
  // backward pass (zero_hpz_partition_size); 1: none do.
  int64_t hpzPartitionSize = 1;
};

BaselineSchedule deepSpeedSchedule(const BaselineStep& step, const DeepSpeedKnobs& knobs);

}  // namespace sheaf::schedule
