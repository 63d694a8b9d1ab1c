// Groups of parameters that a baseline gathers and reduces together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "passes/schedule/BaselineSchedule.h"

namespace sheaf::schedule {

// Consecutive computations that use a group, from the first to the last.
struct GroupVisit {
  uint32_t first = 0, last = 0;
};

struct ParameterGroup {
  std::vector<uint32_t> parameters;
  uint64_t bytes = 0, gradientBytes = 0;
  uint32_t firstGradient = kNone, gradientComplete = kNone;  // kNone: all are frozen
  std::optional<GroupVisit> forward, backward;               // absent: not used in that pass
  bool ofBlocks = false;                                     // else of what belongs to no block

  void add(const BaselineStep& step, uint32_t parameter);
};

// A group for every `blocks` transformer blocks, and one for the rest of the parameters. `splitRest`: parameters that
// the forward pass uses before the first block only (embeddings) form a group of their own.
std::vector<ParameterGroup> blockGroups(const BaselineStep& step, uint32_t blocks, bool splitRest);

// A reduction for each group that is trained, in the order in which their gradients are complete. Of `shards` ranks
// each keeps a shard; with fewer than all ranks, shards are then summed over the replicas.
std::vector<BaselineReduction> reduceScatterGroups(const BaselineStep& step, const std::vector<ParameterGroup>& groups,
                                                   int64_t shards);
// Sums `bytes` of gradients over all ranks and leaves each of `shards` neighbours a shard.
BaselineReduction reduceToShards(const BaselineStep& step, uint64_t bytes, int64_t shards);

// Gradients in buckets: a bucket is closed by the first gradient that would make it larger than `elements`, and reduced
// at that moment; the last one at the end of the backward pass.
struct GradientBucket {
  uint64_t elements = 0, bytes = 0;
  uint32_t first = 0, ready = 0;  // see BaselineReduction
};
std::vector<GradientBucket> gradientBuckets(const BaselineStep& step, uint64_t elements);

// Sums over the parameters.
uint64_t parameterElements(const BaselineStep& step);
uint64_t parameterBytes(const BaselineStep& step);
uint64_t gradientBytes(const BaselineStep& step);
uint64_t trainedElements(const BaselineStep& step);
// Bytes of an element of the widest gradient; 0 if nothing is trained.
uint64_t gradientWidth(const BaselineStep& step);

// A rank's bytes from step to step if parameters, gradients and optimizer state are all sharded over so many ranks.
uint64_t shardedStateBytes(const BaselineStep& step, int64_t shards);
// The optimizer's seconds on a rank that owns one of so many shards.
double shardedUpdateSeconds(const BaselineStep& step, int64_t shards);
// The all-reduce of one scalar over so many neighbours.
BaselineTransfer scalarReduce(const BaselineStep& step, int64_t ranks);

// A knob's value as a summary prints it, in two digits.
std::string numberText(double number);

}  // namespace sheaf::schedule
