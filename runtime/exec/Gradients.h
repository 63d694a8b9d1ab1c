// Captures the reduced gradients of the first step as the updates read them (--dump-gradients).
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
  // This process has the ranks [firstRank, firstRank + localRanks). The gradients are of the loss times `lossScale`,
  // and are divided by it; running statistics are not of the loss.
  GradientCapture(const plan::Plan& plan, int64_t firstRank, int64_t localRanks, double lossScale);
  // StepValues::onGradient; called from streams' threads. A gradient is a rank's shard or the whole bucket.
  void add(int64_t rank, uint32_t bucket, std::span<const std::byte> gradient);
  // Sends the gradients of all processes to process 0. Every process calls it.
  Status gather(comm::ProcessGroup& processes);
  // Writes the gradient of every trainable parameter as f32 in the named layout. On process 0, after gather().
  Status save(const std::string& path) const;

 private:
  bool isCopy(int64_t rank, uint64_t parts) const;

  const plan::Plan& plan_;
  const int64_t firstRank_, localRanks_;
  std::vector<float> factors_;  // per bucket
  std::mutex mutex_;
  std::vector<std::vector<float>> values_;  // per bucket
  std::vector<uint64_t> seen_;              // elements per bucket
  std::vector<uint64_t> parts_;             // that a bucket's gradient is divided into
};

}  // namespace sheaf::exec
