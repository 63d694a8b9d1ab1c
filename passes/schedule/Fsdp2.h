// PyTorch's FSDP2 (torch.distributed.fsdp.fully_shard) as a baseline. docs/schedule.md says how it is modelled, and
// from which sources.
#pragma once

#include "passes/schedule/BaselineSchedule.h"

namespace sheaf::schedule {

struct Fsdp2Knobs {
  uint32_t blocks = 1;     // transformer blocks of one fully_shard() group
  bool splitRest = false;  // embeddings are a group of their own; else all of the root module's parameters are one
  // Ranks of the mesh's shard dimension, which are neighbours; the others replicate (HSDP). 0: all ranks.
  int64_t shards = 0;
  // reshard_after_forward: 1 is False, the number of shards is True, a divisor of it is an int.
  int64_t reshardTo = 1;
  uint32_t keptGroups = 0;  // with resharding: groups, those used last, that have reshard_after_forward=False
  // set_modules_to_forward_prefetch and set_modules_to_backward_prefetch: modules ahead. 1 is what FSDP2 does by
  // itself.
  uint32_t forwardPrefetch = 1, backwardPrefetch = 1;
  // set_reduce_scatter_max_input_buffers (since PyTorch 2.15, experimental): groups of gradients whose reductions may
  // be under way when the next group's gradients are complete. 1 is what FSDP2 does by itself.
  uint32_t reduceBuffers = 1;
};

BaselineSchedule fsdp2Schedule(const BaselineStep& step, const Fsdp2Knobs& knobs);

// ZeRO-3 whose groups are gathered at their use; reductions overlap what follows.
BaselineSchedule eagerSchedule(const BaselineStep& step, uint32_t blocks);

}  // namespace sheaf::schedule
