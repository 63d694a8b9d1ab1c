// Chooses the arena size for measuring a GPU of unknown speed.
#include <algorithm>

#include "runtime/measure/InstructionTimer.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/measure/MeasuredCalls.h"
#include "runtime/plan/Types.h"

namespace sheaf::measure {
namespace {

constexpr uint64_t kMostArena = uint64_t{2} << 30, kLeastArena = uint64_t{16} << 20;

}  // namespace

Expected<RankSet> gpuRanks(Device& device, const MeasureOptions& options) {
  // Ranks that share a GPU are measured together. Ranks with a GPU each are measured independently.
  RankSet set{options.processes ? 1 : options.ranks, 1, options.processes};
  constexpr uint64_t kMost = 64 << 20;
  InstructionTimer timer(device, options, set, 2 * kMost, plan::Plan());
  SizeLimit limit(true);
  double bytes = 0, seconds = 0;
  std::vector<std::pair<size_t, uint64_t>> groups;
  for (uint64_t size = 64 << 10; size <= kMost; size *= 4) {
    groups.emplace_back(timer.group(2 * size), size);
    const int64_t count = static_cast<int64_t>(size / sizeof(float));
    timer.add(copyCall(1, count, count));
  }
  SHEAF_RETURN_IF_ERROR(timer.open());
  for (const auto& [group, size] : groups) {
    bytes = 2 * static_cast<double>(size);
    if (!limit.allows(bytes)) break;
    Expected<double> taken = timer.seconds(group);
    if (!taken.ok()) return taken.status();
    limit.record(bytes, seconds = *taken);
  }
  const double most = static_cast<double>(std::min(kMostArena, options.memoryBytes / 2));
  const double within = std::min(std::max(kLongestSeconds * bytes / seconds, double{kLeastArena}), most);
  set.arenaBytes = static_cast<uint64_t>(within) / plan::kAlignment * plan::kAlignment;
  return set;
}

}  // namespace sheaf::measure
