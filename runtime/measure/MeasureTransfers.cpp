#include <algorithm>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/measure/MeasuredCalls.h"

namespace sheaf::measure {
namespace {

using plan::Transfer;

constexpr uint64_t kBlock = 4096;
// The largest transfer between memories: that of a bucket.
constexpr uint64_t kLargest = uint64_t{64} << 20;

struct Case {
  size_t group;
  uint64_t bytes;
};

std::vector<Case> casesOf(InstructionTimer& timer, Transfer::Kind kind, uint64_t arenaBytes) {
  std::vector<Case> cases;
  for (uint64_t bytes = kBlock; bytes <= std::min(kLargest, arenaBytes); bytes *= 4) {
    cases.push_back({timer.group(std::min(kFootprints * bytes, arenaBytes)), bytes});
    for (int i = 0; i < kFootprints; ++i) timer.add(kind, bytes);
  }
  return cases;
}

// What would take long is extrapolated.
Expected<profile::TransferCost> costOf(InstructionTimer& timer, Transfer::Kind kind, const std::vector<Case>& cases) {
  SizeLimit limit(true);
  std::vector<std::pair<double, double>> taken;  // bytes, seconds
  for (const Case& one : cases) {
    const double bytes = static_cast<double>(one.bytes);
    if (taken.size() >= 2 && !limit.allows(bytes)) break;
    Expected<double> seconds = timer.seconds(one.group);
    if (!seconds.ok()) return seconds.status();
    limit.record(bytes, *seconds);
    taken.emplace_back(bytes, *seconds);
  }
  return transferCost(kind, taken);
}

}  // namespace

profile::TransferCost transferCost(plan::Transfer::Kind kind, std::span<const std::pair<double, double>> taken) {
  // Other load may have made the smallest one the slowest.
  constexpr double kMost = 0.9;
  profile::TransferCost cost;
  cost.kind = kind;
  cost.latency = taken.front().second;
  for (const auto& [bytes, seconds] : taken.subspan(1)) cost.latency = std::min(cost.latency, kMost * seconds);
  for (const auto& [bytes, seconds] : taken.subspan(1))
    cost.bandwidth.points.emplace_back(bytes, bytes / (seconds - cost.latency));
  return cost;
}

Status measureTransfers(Device& device, const MeasureOptions& options, const RankSet& set, profile::ProfileData& data) {
  const uint64_t arena = std::min(set.arenaBytes, kFootprints * kLargest) / kBlock * kBlock;
  InstructionTimer timer(device, options, set, arena, plan::Plan());
  timer.addSpace(plan::Buffer::HOST, arena);
  const auto fetches = casesOf(timer, Transfer::TO_DEVICE, arena), stores = casesOf(timer, Transfer::TO_HOST, arena);
  SHEAF_RETURN_IF_ERROR(timer.open());
  std::vector<size_t> largest;  // groups
  double bytes = 0;
  for (const auto& [kind, cases] : {std::pair{Transfer::TO_DEVICE, &fetches}, std::pair{Transfer::TO_HOST, &stores}}) {
    Expected<profile::TransferCost> cost = costOf(timer, kind, *cases);
    if (!cost.ok()) return cost.status();
    const auto& points = cost->bandwidth.points;
    cost->source = cat("measured with ", options.ranks, options.ranks == 1 ? " rank" : " ranks",
                       " at once: copies of 4 KiB to ", bytesText(static_cast<uint64_t>(points.back().first)),
                       ", one after the other, between the GPU and pinned memory");
    largest.push_back((*cases)[points.size()].group);
    bytes += kFootprints * points.back().first;
    data.transfers.push_back(std::move(*cost));
  }
  // What passes through memory in both directions at once it can at least carry.
  Expected<double> both = timer.together(largest, {1, 1});
  if (!both.ok()) return both.status();
  data.hostBandwidth = bytes / *both * static_cast<double>(std::min(options.ranks, options.ranksPerNode));
  data.hostSource = "measured, at least: what the ranks of a node copy to their GPUs and from them at the same time";
  return {};
}

}  // namespace sheaf::measure
