#include <algorithm>

#include "runtime/base/Text.h"
#include "runtime/schedule/MeasureParts.h"
#include "runtime/schedule/MeasuredCalls.h"

namespace sheaf::schedule {
namespace {

// Collectives depend on who arrives when: not their quickest repetition counts, but a common one.
constexpr double kTypical = 0.25;
constexpr int kHandOffs = 16;

void addCollective(InstructionTimer& timer, plan::CollectiveOp op, uint64_t bytes, uint64_t ranks) {
  const uint64_t part = bytes / ranks;
  plan::Instruction instruction;
  plan::Collective* collective = instruction.mutable_collective();
  collective->set_op(op);
  collective->set_type(plan::F32);
  collective->set_count((op == plan::ALL_REDUCE ? bytes : part) / sizeof(float));
  *collective->mutable_source() = timer.place(op == plan::ALL_GATHER ? part : bytes, plan::READ);
  *collective->mutable_destination() = timer.place(op == plan::REDUCE_SCATTER ? part : bytes, plan::WRITE);
  timer.add(std::move(instruction), InstructionTimer::kCommunication);
}

size_t collectiveGroup(InstructionTimer& timer, plan::CollectiveOp op, uint64_t bytes, uint64_t ranks) {
  const size_t group = timer.group(kFootprints * 2 * (bytes + 128));
  for (int i = 0; i < kFootprints; ++i) addCollective(timer, op, bytes, ranks);
  return group;
}

// Products alone, and products each of which waits for a small all-gather that waits for the one before: what a
// collective takes in a step beyond itself, for ranks arrive apart and threads have to be woken.
std::pair<size_t, size_t> handOffGroups(InstructionTimer& timer, uint64_t ranks) {
  std::pair<size_t, size_t> groups;
  for (bool handing : {false, true}) {
    (handing ? groups.second : groups.first) = timer.group(1 << 20);
    for (int i = 0; i < kHandOffs; ++i) {
      addCalls(timer, gemmCall(plan::F32, 128, 128, 128, false, false), 1);
      if (!handing) continue;
      timer.order(InstructionTimer::kCompute, InstructionTimer::kCommunication);
      addCollective(timer, plan::ALL_GATHER, 128 * ranks, ranks);
      timer.order(InstructionTimer::kCommunication, InstructionTimer::kCompute);
    }
  }
  return groups;
}

}  // namespace

Expected<std::vector<LinkCost>> measureLinks(Device& device, const MeasureOptions& options, int64_t ranks) {
  const uint64_t n = static_cast<uint64_t>(ranks);
  const uint64_t arena = std::min(kArenaBytes, std::max(uint64_t{1} << 20, options.memoryBytes / (4 * n)));
  InstructionTimer timer(device, ranks, 1, arena, plan::Plan());
  struct Case {
    size_t group;
    Transfer transfer;
  };
  std::vector<std::vector<Case>> cases;
  for (plan::CollectiveOp op : {plan::ALL_GATHER, plan::REDUCE_SCATTER, plan::ALL_REDUCE}) {
    cases.emplace_back();
    for (uint64_t bytes = n * 128; bytes <= (uint64_t{64} << 20) && 2 * bytes + (1 << 12) <= arena;
         bytes *= bytes < (64 << 10) ? 16 : 4)
      cases.back().push_back({collectiveGroup(timer, op, bytes, n), {op, bytes, ranks}});
  }
  const auto [computing, handing] = handOffGroups(timer, n);
  SHEAF_RETURN_IF_ERROR(timer.open());
  double handOff = 0;
  for (const auto& [group, sign] : {std::pair{handing, 1}, std::pair{computing, -1}}) {
    Expected<double> seconds = timer.secondsOfAll(group, kTypical);
    if (!seconds.ok()) return seconds.status();
    handOff += sign * *seconds * timer.instructions(group) / kHandOffs;
  }
  std::vector<LinkCost> links;
  for (const std::vector<Case>& sizes : cases) {
    LinkCost link;
    link.op = sizes.front().transfer.op;
    link.ranks = ranks;
    link.source = cat("measured with ", ranks, " ranks on ", options.cores, " cores; the latency as in a step");
    const double sent = (link.op == plan::ALL_REDUCE ? 2.0 : 1.0) * static_cast<double>(n - 1) / static_cast<double>(n);
    for (const Case& c : sizes) {
      Expected<double> seconds = timer.secondsOfAll(c.group, kTypical);
      if (!seconds.ok()) return seconds.status();
      if (&c == &sizes.front()) {
        link.latency = *seconds;
        // That of an all-gather, which comes first, is in the hand-off.
        if (&sizes == &cases.front()) handOff = std::max(handOff - *seconds, 0.0);
        continue;
      }
      const double bytes = static_cast<double>(c.transfer.bytes);
      link.bandwidth.points.emplace_back(bytes / static_cast<double>(n),
                                         sent * bytes / std::max(*seconds - link.latency, *seconds * 0.1));
    }
    link.latency += handOff;
    links.push_back(link);
  }
  return links;
}

Expected<Slowdown> measureSlowdown(Device& device, const MeasureOptions& options) {
  constexpr int64_t kRanks = 2;
  const int threads = static_cast<int>(options.cores / kRanks - 1);
  if (threads < 1)
    return Slowdown{0, cat("not measurable on ", options.cores, " cores: collectives' threads have none of their own")};
  InstructionTimer timer(device, kRanks, threads, kArenaBytes, plan::Plan());
  const size_t product = timer.group(uint64_t{32} << 20);
  addCalls(timer, gemmCall(plan::F32, 1536, 384, 1024, false, false), kFootprints);
  const size_t gather = collectiveGroup(timer, plan::ALL_GATHER, uint64_t{16} << 20, kRanks);
  SHEAF_RETURN_IF_ERROR(timer.open());
  // Both are to take about as long.
  constexpr double kSeconds = 0.05;
  std::vector<int> times;
  std::vector<double> alone;
  for (size_t group : {product, gather}) {
    Expected<double> once = timer.seconds(group);
    if (!once.ok()) return once.status();
    times.push_back(std::max(static_cast<int>(kSeconds / (*once * kFootprints)), 1));
    Expected<double> seconds = timer.together({group}, {times.back()});
    if (!seconds.ok()) return seconds.status();
    alone.push_back(*seconds);
  }
  Expected<double> both = timer.together({product, gather}, times);
  if (!both.ok()) return both.status();
  // While the collectives run, computation does so much of its work; all of it if they take no longer together.
  const double done = std::clamp((alone[0] + alone[1] - *both) / std::min(alone[0], alone[1]), 1e-3, 1.0);
  return Slowdown{1 / done - 1, cat("measured: products of 1536 x 384 x 1024 on ", kRanks, " ranks of ", threads,
                                    " threads beside all-gathers of 16 MiB")};
}

}  // namespace sheaf::schedule
