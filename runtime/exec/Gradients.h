// The first step's reduced gradients, caught on their way into the updates.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class GradientCapture {
 public:
  explicit GradientCapture(const plan::Plan& plan);
  // StepValues::onGradient; called from streams' threads. A gradient is a rank's shard or the whole bucket.
  void add(int64_t rank, uint32_t bucket, std::span<const std::byte> gradient);
  // Every trainable parameter's gradient, f32, in the named layout.
  Status save(const std::string& path) const;

 private:
  const plan::Plan& plan_;
  std::mutex mutex_;
  std::vector<std::vector<float>> values_;  // per bucket
  std::vector<uint64_t> seen_;              // elements per bucket
};

}  // namespace sheaf::exec
