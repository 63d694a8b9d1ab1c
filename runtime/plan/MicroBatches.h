// Groups the micro-batches of a step, and finds their rows.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// M = p * 2^j micro-batches, p odd, are p groups of 2^j. A group's sum is a subtree of the tree of all leaves, or,
// where the number of ranks has an odd factor, several that follow each other.
struct MicroBatchGroups {
  explicit MicroBatchGroups(int64_t microBatches)
      : levels(std::countr_zero(static_cast<uint64_t>(microBatches))), count(microBatches >> levels) {}

  int64_t levels;  // j
  int64_t count;   // p

  int64_t size() const { return int64_t{1} << levels; }
  int64_t groupOf(int64_t microBatch) const { return microBatch >> levels; }
  int64_t placeInGroup(int64_t microBatch) const { return microBatch & (size() - 1); }
  // The number of parts that differ in which sums they add and keep.
  int64_t parts() const { return levels + (count > 1 ? 3 : 1); }
  // The part that a micro-batch runs: within a group one for each number of trailing ones, then those of the last
  // micro-batch of the first group, of the groups between, and of the last one.
  int64_t partOf(int64_t microBatch) const {
    const int64_t place = placeInGroup(microBatch), group = groupOf(microBatch);
    if (place + 1 < size()) return std::countr_one(static_cast<uint64_t>(place));
    return levels + (group == 0 ? 0 : group + 1 < count ? 1 : 2);
  }
};

// The pieces of the batch that the ranks have of a micro-batch: piece first + rank * stride (plan.proto's Dealing).
struct PiecesOfRanks {
  int64_t first, stride;
};
inline PiecesOfRanks piecesOfRanks(const Plan& plan, int64_t microBatch) {
  if (plan.dealing() != BY_RANK) return {microBatch * plan.ranks(), 1};
  const MicroBatchGroups groups(microBatches(plan));
  return {groups.groupOf(microBatch) * plan.ranks() * groups.size() + groups.placeInGroup(microBatch), groups.size()};
}

// True if a sum over ranks goes on from what its destination holds.
inline bool continues(const Instruction& collective) {
  return collective.collective().op() != ALL_GATHER && destinationOf(collective).access() == READ_WRITE;
}

}  // namespace sheaf::plan
