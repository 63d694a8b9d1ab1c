#include "runtime/plan/SavedParts.h"

#include <algorithm>

#include "runtime/plan/Types.h"

namespace sheaf::plan {

std::vector<SavedPart> savedParts(const Plan& plan, int64_t rank) {
  const uint64_t index = static_cast<uint64_t>(shardIndex(plan, rank));
  std::vector<SavedPart> parts;
  for (int p = 0; p < plan.parameters_size(); ++p) {
    const Parameter& parameter = plan.parameters(p);
    const Bucket& bucket = plan.buckets(static_cast<int>(parameter.bucket()));
    const uint64_t shard = bucket.elements() / static_cast<uint64_t>(plan.ranks()), offset = parameter.offset();
    const uint64_t begin = std::max(offset, index * shard);
    const uint64_t end = std::min(offset + *elementCount(shapeOf(parameter)), (index + 1) * shard);
    if (begin >= end) continue;
    parts.push_back({p, exactSlot(bucket), begin - offset, end - offset});
    for (int slot = bucket.master() ? 1 : 0; slot < bucket.states_size(); ++slot)
      parts.push_back({p, slot, begin - offset, end - offset});
  }
  return parts;
}

uint64_t bytesOf(const Plan& plan, const SavedPart& part) {
  const Bucket& bucket = plan.buckets(static_cast<int>(plan.parameters(part.parameter).bucket()));
  return (part.end - part.begin) * elementBytes(slotType(bucket, part.slot));
}

uint64_t stagingBytes(const Plan& plan, int64_t rank, uint64_t limit) {
  uint64_t total = 0;
  for (const SavedPart& part : savedParts(plan, rank))
    total += (bytesOf(plan, part) + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
  // A rank without any parts has a ring, too.
  return std::max(std::min(total, limit / kStagingAlignment * kStagingAlignment), kStagingAlignment);
}

uint64_t mostStagingBytes(const Plan& plan, uint64_t limit) {
  uint64_t most = 0;
  for (int64_t rank = 0; rank < plan.ranks(); ++rank) most = std::max(most, stagingBytes(plan, rank, limit));
  return most;
}

}  // namespace sheaf::plan
