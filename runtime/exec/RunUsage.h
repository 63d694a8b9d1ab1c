// Measures the time of a run's steps and its memory, for the log's last event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/exec/Job.h"

namespace sheaf::exec {

class RunUsage {
 public:
  void noteStep(double seconds);
  // Returns the bytes that are resident now, without mapped files.
  uint64_t noteMemory();

  // Adds the median of the latest thousand steps, in seconds, and the most memory seen.
  void addTo(json::Object& event);

 private:
  double medianSeconds();

  std::vector<double> seconds_;  // of the latest steps, in a ring
  size_t next_ = 0;
  uint64_t most_ = 0;  // resident bytes
};

// Returns the highest byte that each rank of the job has written in its arena, with --poison. Every process calls it;
// complete in the first.
Expected<std::vector<uint64_t>> highestTouchedBytes(const std::vector<std::unique_ptr<RankContext>>& ranks,
                                                    const Job& job);

}  // namespace sheaf::exec
