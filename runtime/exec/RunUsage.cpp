#include "runtime/exec/RunUsage.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "runtime/base/Text.h"
#include "runtime/exec/Machine.h"

namespace sheaf::exec {

void RunUsage::noteStep(double seconds) {
  constexpr size_t kMost = 1000;
  if (seconds_.size() < kMost)
    seconds_.push_back(seconds);
  else
    seconds_[next_++ % kMost] = seconds;
}

uint64_t RunUsage::noteMemory() {
  const uint64_t resident = privateResidentBytes();
  most_ = std::max(most_, resident);
  return resident;
}

double RunUsage::medianSeconds() {
  if (seconds_.empty()) return 0;
  const auto middle = seconds_.begin() + static_cast<ptrdiff_t>(seconds_.size() / 2);
  std::nth_element(seconds_.begin(), middle, seconds_.end());
  return *middle;
}

void RunUsage::addTo(json::Object& event) {
  noteMemory();
  event.set("step_seconds", medianSeconds());
  event.set("peak_resident_bytes", peakResidentBytes());
  event.set("resident_bytes_without_files", most_);
}

Expected<std::vector<uint64_t>> highestTouchedBytes(const std::vector<std::unique_ptr<RankContext>>& ranks,
                                                    const Job& job) {
  std::string mine;
  for (const auto& rank : ranks) mine += cat(rank->highestTouchedByte(), " ");
  std::vector<std::string> all{mine};
  if (job.group()) {
    Expected<std::vector<std::string>> gathered = job.group()->gather(mine, "the arenas' highest bytes");
    if (!gathered.ok()) return gathered.status();
    all = std::move(*gathered);
  }
  std::vector<uint64_t> highest;
  for (const std::string& numbers : all) {
    std::istringstream in(numbers);
    for (uint64_t byte; in >> byte;) highest.push_back(byte);
  }
  return highest;
}

}  // namespace sheaf::exec
