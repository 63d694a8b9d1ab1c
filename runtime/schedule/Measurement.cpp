#include "runtime/schedule/Measurement.h"

#include <algorithm>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/schedule/MeasureParts.h"

namespace sheaf::schedule {
namespace {

// 1, 2, 4, ... below a number, and it.
std::vector<int64_t> doublings(int64_t first, int64_t last) {
  std::vector<int64_t> numbers;
  for (int64_t n = first; n < last; n *= 2) numbers.push_back(n);
  numbers.push_back(std::max(first, last));
  return numbers;
}

}  // namespace

Expected<Profile> measure(Device& device, const MeasureOptions& options) {
  auto tell = [&](const std::string& what) {
    if (options.progress) options.progress(what);
  };
  Profile profile;
  profile.name_ = options.name;
  profile.description_ = cat("measured on ", options.machine);
  profile.ranks_ = options.ranks;
  profile.ranksPerNode_ = plan::kMaxRanks;
  profile.cores_ = options.cores;
  profile.memoryBytes_ = options.memoryBytes;
  profile.memorySource_ = "what the operating system grants this process, for all ranks together";
  for (int64_t threads : options.threads > 0 ? std::vector{options.threads} : doublings(1, options.cores)) {
    tell(cat("computation with ", threads, threads == 1 ? " thread" : " threads", " a rank"));
    Expected<ComputeCost> compute = measureCompute(device, options, threads);
    if (!compute.ok()) return compute.status();
    profile.compute_.push_back(std::move(*compute));
  }
  for (int64_t ranks : doublings(2, options.ranks)) {
    tell(cat("collectives of ", ranks, " ranks"));
    Expected<std::vector<LinkCost>> links = measureLinks(device, options, ranks);
    if (!links.ok()) return links.status();
    profile.links_.insert(profile.links_.end(), links->begin(), links->end());
  }
  Expected<Slowdown> slowdown = measureSlowdown(device, options);
  if (!slowdown.ok()) return slowdown.status();
  profile.slowdown_ = slowdown->value;
  profile.slowdownSource_ = slowdown->source;
  return profile;
}

}  // namespace sheaf::schedule
