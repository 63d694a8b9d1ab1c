// The first step's reduced gradients, caught on their way into the updates.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

class GradientCapture {
 public:
  // With ranks [firstRank, firstRank + localRanks) in this process.
  GradientCapture(const plan::Plan& plan, int64_t firstRank, int64_t localRanks);
  // StepValues::onGradient; called from streams' threads. A gradient is a rank's shard or the whole bucket.
  void add(int64_t rank, uint32_t bucket, std::span<const std::byte> gradient);
  // Brings what other processes have to process 0. Every process calls it.
  Status gather(comm::ProcessGroup& processes);
  // Every trainable parameter's gradient, f32, in the named layout. On process 0, after gather() if there are others.
  Status save(const std::string& path) const;

 private:
  const plan::Plan& plan_;
  const int64_t firstRank_, localRanks_;
  std::mutex mutex_;
  std::vector<std::vector<float>> values_;  // per bucket
  std::vector<uint64_t> seen_;              // elements per bucket
};

}  // namespace sheaf::exec
