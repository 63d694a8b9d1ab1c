#include <algorithm>

#include "runtime/base/Text.h"
#include "runtime/measure/HandOff.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/measure/MeasuredCalls.h"
#include "runtime/plan/Types.h"

namespace sheaf::measure {
namespace {

// The largest arrays, and the arena that remains besides them.
constexpr uint64_t kMostOnCpus = uint64_t{64} << 20, kMostOnGpus = uint64_t{512} << 20, kRoom = 1 << 12;

void addCollective(InstructionTimer& timer, plan::CollectiveOp op, uint64_t bytes, uint64_t ranks) {
  const uint64_t part = bytes / ranks;
  plan::Instruction instruction;
  plan::Collective* collective = instruction.mutable_collective();
  collective->set_op(op);
  collective->set_type(plan::F32);
  collective->set_count((op == plan::ALL_REDUCE ? bytes : part) / sizeof(float));
  *instruction.add_operands() = timer.place(op == plan::ALL_GATHER ? part : bytes, plan::READ);
  *instruction.add_operands() = timer.place(op == plan::REDUCE_SCATTER ? part : bytes, plan::WRITE);
  timer.add(std::move(instruction), InstructionTimer::kCommunication);
}

size_t collectiveGroup(InstructionTimer& timer, plan::CollectiveOp op, uint64_t bytes, uint64_t ranks) {
  const size_t group = timer.group(kFootprints * 2 * (bytes + 128));
  for (int i = 0; i < kFootprints; ++i) addCollective(timer, op, bytes, ranks);
  return group;
}

}  // namespace

Expected<std::vector<profile::LinkCost>> measureLinks(Device& device, const MeasureOptions& options, const RankSet& set,
                                                      bool network) {
  const uint64_t n = static_cast<uint64_t>(set.ranks);
  const uint64_t most = options.gpu ? kMostOnGpus : kMostOnCpus;
  uint64_t arena = std::min(set.arenaBytes, 2 * most + kRoom);
  if (!options.gpu) arena = std::min(kArenaBytes, std::max(uint64_t{1} << 20, options.memoryBytes / (4 * n)));
  InstructionTimer timer(device, options, set, arena / plan::kAlignment * plan::kAlignment, plan::Plan());
  struct Case {
    size_t group;
    profile::Transfer transfer;
  };
  std::vector<std::vector<Case>> cases;
  for (plan::CollectiveOp op : {plan::ALL_GATHER, plan::REDUCE_SCATTER, plan::ALL_REDUCE}) {
    cases.emplace_back();
    for (uint64_t bytes = n * 128; bytes <= most && 2 * bytes + kRoom <= arena; bytes *= bytes < (64 << 10) ? 16 : 4)
      cases.back().push_back({collectiveGroup(timer, op, bytes, n), {op, bytes, set.ranks}});
  }
  HandOff handing(timer, InstructionTimer::kCommunication, [&] { addCollective(timer, plan::ALL_GATHER, 128 * n, n); });
  SHEAF_RETURN_IF_ERROR(timer.open());
  Expected<double> handed = handing.seconds();
  if (!handed.ok()) return handed.status();
  double handOff = *handed;
  std::vector<profile::LinkCost> links;
  for (const std::vector<Case>& sizes : cases) {
    profile::LinkCost link;
    link.op = sizes.front().transfer.op;
    link.ranks = set.ranks;
    link.network = network;
    link.source = cat("measured with ", set.ranks, " ranks",
                      options.gpu ? network         ? " over the network"
                                    : set.processes ? " of one node, the others equally busy"
                                                    : " that share a GPU"
                                  : cat(" on ", options.cores, " cores"),
                      "; the latency as in a step");
    const double sent = (link.op == plan::ALL_REDUCE ? 2.0 : 1.0) * static_cast<double>(n - 1) / static_cast<double>(n);
    double before = 0;
    for (const Case& c : sizes) {
      // Four times the bytes take at most four times as long; sizes that would take too long are extrapolated.
      if (options.gpu && link.bandwidth.points.size() >= 2 && 4 * before > kLongestSeconds) break;
      Expected<double> seconds = timer.secondsOfAll(c.group, kTypical);
      if (!seconds.ok()) return seconds.status();
      before = *seconds;
      if (&c == &sizes.front()) {
        link.latency = *seconds;
        // The latency of an all-gather, which comes first, is part of the hand-off.
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

double slowdownOf(double computing, double transferring, double both) {
  // The part of the shorter one that is done while the other one runs.
  const double done = std::clamp((computing + transferring - both) / std::min(computing, transferring), 1e-3, 1.0);
  return 1 / done - 1;
}

Expected<Slowdown> measureSlowdown(Device& device, const MeasureOptions& options, const RankSet& set) {
  RankSet ranks = set;
  // On CPUs, two ranks whose threads leave cores for the collectives' threads.
  if (!options.gpu) ranks = {2, static_cast<int>(options.cores / 2 - 1), nullptr, kArenaBytes};
  if (ranks.threads < 1)
    return Slowdown{0, cat("not measurable on ", options.cores, " cores: collectives' threads have none of their own")};
  if (ranks.ranks < 2) return Slowdown{0, "one rank has no collectives"};
  InstructionTimer timer(device, options, ranks, ranks.arenaBytes, plan::Plan());
  struct Pair {
    size_t product, gather;
    std::string name;
  };
  std::vector<Pair> pairs;
  auto add = [&](const plan::GemmCall& call, uint64_t footprint, int copies, uint64_t gathered) {
    const uint64_t n = static_cast<uint64_t>(ranks.ranks), bytes = gathered / (128 * n) * 128 * n;
    const size_t product = timer.group(footprint);
    timer.add(call, copies);
    pairs.push_back(
        {product, collectiveGroup(timer, plan::ALL_GATHER, bytes, n),
         cat("products of ", call.m, " x ", call.n, " x ", call.k, " during all-gathers of ", bytesText(bytes))});
  };
  if (!options.gpu)
    add(gemmCall(plan::F32, 1536, 384, 1024, false, false), uint64_t{32} << 20, kFootprints, uint64_t{16} << 20);
  else
    for (int64_t size : {256, 1024, 4096}) {
      const plan::GemmCall call = gemmCall(plan::BF16, size, size, size, false, false);
      // Twice the bytes of the product's operands and result.
      const uint64_t footprint = operandBytes(call) + gpuScratch(call) + kRoom;
      if (size == 256 || std::max(footprint, 4 * operandBytes(call) + kRoom) <= ranks.arenaBytes)
        add(call, footprint, 1, 2 * operandBytes(call));
    }
  SHEAF_RETURN_IF_ERROR(timer.open());
  // Products and collectives should take about as long. Uses the largest pair that is not too slow on this device.
  constexpr double kSeconds = 0.05;
  std::vector<size_t> groups;
  std::vector<double> once;
  std::string name;
  for (const Pair& pair : pairs) {
    if (!once.empty() && 64 * std::max(once[0], once[1]) > kLongestSeconds) break;
    groups = {pair.product, pair.gather};
    once.clear();
    name = pair.name;
    for (size_t group : groups) {
      Expected<double> seconds = timer.seconds(group);
      if (!seconds.ok()) return seconds.status();
      once.push_back(*seconds);
    }
  }
  std::vector<int> times;
  std::vector<double> alone;
  for (size_t i = 0; i < groups.size(); ++i) {
    times.push_back(std::max(static_cast<int>(kSeconds / (once[i] * timer.instructions(groups[i]))), 1));
    Expected<double> seconds = timer.together({groups[i]}, {times.back()});
    if (!seconds.ok()) return seconds.status();
    alone.push_back(*seconds);
  }
  Expected<double> both = timer.together(groups, times);
  if (!both.ok()) return both.status();
  return Slowdown{slowdownOf(alone[0], alone[1], *both),
                  cat("measured: ", name, " on ", ranks.ranks, " ranks",
                      options.gpu ? "" : cat(" of ", ranks.threads, " threads"))};
}

}  // namespace sheaf::measure
