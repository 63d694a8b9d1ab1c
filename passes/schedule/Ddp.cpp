#include "passes/schedule/Ddp.h"

#include <algorithm>

#include "passes/schedule/BaselineGroups.h"
#include "runtime/base/Text.h"

namespace sheaf::schedule {

BaselineSchedule ddpSchedule(const BaselineStep& step, uint64_t bucketBytes) {
  BaselineSchedule s;
  const uint64_t width = std::max<uint64_t>(gradientWidth(step), 1);
  // Gradients are views into the buckets, which stay.
  s.constantBytes = step.otherBytes + parameterBytes(step) + gradientBytes(step) + step.optimizerBytes;
  for (const GradientBucket& bucket : gradientBuckets(step, bucketBytes / width))
    s.reductions.push_back(
        {transferOf(step, {plan::ALL_REDUCE, bucket.bytes, step.ranks}), 0, bucket.first, bucket.ready, {}});
  s.updateSeconds = step.updateSecondsPerElement * static_cast<double>(trainedElements(step));
  // Every rank has all gradients: their norm needs no collective.
  s.knobs = cat("bucket_cap_mb ", bucketBytes >> 20);
  return s;
}

}  // namespace sheaf::schedule
