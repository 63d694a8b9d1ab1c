#include "passes/schedule/Baselines.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "passes/schedule/BaselineGroups.h"
#include "passes/schedule/Ddp.h"
#include "passes/schedule/DeepCompile.h"
#include "passes/schedule/DeepSpeedOffload.h"
#include "passes/schedule/Fsdp2.h"

namespace sheaf::schedule {
namespace {

// What each knob may be set to, as a number; the first value is the default.
using Choices = std::vector<std::vector<double>>;
using Setting = std::vector<double>;

class Search {
 public:
  Search(const BaselineStep& step, const BaselineLimits& limit, Choices choices,
         std::function<BaselineSchedule(const Setting&)> schedule)
      : step_(step), limit_(limit), choices_(std::move(choices)), schedule_(std::move(schedule)) {}

  BaselineResult run(std::vector<Setting> starts) {
    Setting defaults;
    for (const std::vector<double>& values : choices_) defaults.push_back(values.front());
    starts.insert(starts.begin(), defaults);
    std::optional<BaselineResult> best;
    for (Setting& start : starts) {
      const BaselineResult found = descend(std::move(start));
      if (!best || better(found, *best)) best = found;
    }
    return std::move(*best);
  }

 private:
  const BaselineResult& evaluate(const Setting& setting) {
    auto known = known_.find(setting);
    if (known != known_.end()) return known->second;
    BaselineSchedule schedule = schedule_(setting);
    const BaselineCost cost = playBaselineSchedule(step_, schedule);
    auto within = [](uint64_t bytes, uint64_t limit) { return limit == 0 || bytes <= limit; };
    const bool fits =
        within(cost.bytes, limit_.device) && within(cost.hostBytes, limit_.host) && within(cost.fileBytes, limit_.file);
    return known_
        .emplace(setting, BaselineResult{cost.seconds, cost.bytes, cost.hostBytes, cost.fileBytes,
                                         std::move(schedule.knobs), fits})
        .first->second;
  }

  BaselineResult descend(Setting setting) {
    BaselineResult best = evaluate(setting);
    for (bool improved = true; improved;) {
      improved = false;
      for (size_t knob = 0; knob < choices_.size(); ++knob)
        for (double value : choices_[knob]) {
          Setting changed = setting;
          changed[knob] = value;
          const BaselineResult& tried = evaluate(changed);
          if (!better(tried, best)) continue;
          best = tried;
          setting = std::move(changed);
          improved = true;
        }
    }
    return best;
  }

  const BaselineStep& step_;
  const BaselineLimits limit_;
  const Choices choices_;
  const std::function<BaselineSchedule(const Setting&)> schedule_;
  std::map<Setting, BaselineResult> known_;
};

// The default, and parts of a whole that are not larger than it.
std::vector<double> sizes(double usual, double whole, std::initializer_list<double> parts) {
  std::vector<double> values{usual};
  for (double part : parts) values.push_back(whole * part);
  return values;
}

// Numbers of neighbours below all ranks that state may be sharded over: one node, two nodes, four, ...
std::vector<int64_t> shardSizes(const BaselineStep& step) {
  std::vector<int64_t> sizes;
  for (int64_t size = step.ranksPerNode; size < step.ranks; size *= 2)
    if (step.ranks % size == 0) sizes.push_back(size);
  return sizes;
}

// `shards`: of the mesh's shard dimension.
BaselineResult playFsdp2(const BaselineStep& step, const BaselineLimits& limit, int64_t shards) {
  std::vector<double> reshard{static_cast<double>(shards), 1};
  for (int64_t n = 2; n < shards; ++n)
    if (shards % n == 0) reshard.push_back(static_cast<double>(n));
  const double groups = static_cast<double>(blockGroups(step, 1, false).size());
  Choices choices{
      {1, 2, 3, 4, 6, 8}, {0, 1},       reshard,        {0, 1, groups / 8, groups / 4, groups / 2, groups * 3 / 4},
      {1, 2, 3, 4},       {1, 2, 3, 4}, {1, 2, 3, 4, 8}};
  Search search(step, limit, std::move(choices), [&](const Setting& s) {
    Fsdp2Knobs knobs;
    knobs.shards = shards;
    knobs.blocks = static_cast<uint32_t>(s[0]);
    knobs.splitRest = s[1] > 0;
    knobs.reshardTo = static_cast<int64_t>(s[2]);
    knobs.keptGroups = static_cast<uint32_t>(s[3]);
    knobs.forwardPrefetch = static_cast<uint32_t>(s[4]);
    knobs.backwardPrefetch = static_cast<uint32_t>(s[5]);
    knobs.reduceBuffers = static_cast<uint32_t>(s[6]);
    return fsdp2Schedule(step, knobs);
  });
  // Also from parameters that stay, and from reductions that computation does not wait for.
  const double all = static_cast<double>(shards);
  return search.run({{1, 0, 1, 0, 1, 1, 1}, {1, 0, 1, 0, 1, 1, 8}, {1, 0, all, 0, 1, 1, 8}});
}

// The best of a system that shards among so many ranks and replicates among the others.
template <typename Play>
BaselineResult bestOfShardSizes(const BaselineStep& step, Play play) {
  std::optional<BaselineResult> best;
  for (int64_t shards : shardSizes(step)) {
    BaselineResult found = play(shards);
    if (!best || schedule::better(found, *best)) best = std::move(found);
  }
  return std::move(*best);
}

BaselineResult playHsdp(const BaselineStep& step, const BaselineLimits& limit) {
  return bestOfShardSizes(step, [&](int64_t shards) { return playFsdp2(step, limit, shards); });
}

// `usual`: MiCS' and hpZ's settings, which are for stage 3 only.
BaselineResult playDeepSpeed(const BaselineStep& step, const BaselineLimits& limit, const DeepSpeedKnobs& usual) {
  const double elements = static_cast<double>(parameterElements(step));
  const bool anyStage = usual.micsShardSize == 0 && usual.hpzPartitionSize == 1;
  Choices choices{anyStage ? std::vector<double>{3, 2, 1} : std::vector<double>{3},
                  sizes(usual.reduceBucketSize, elements, {1, 1. / 4, 1. / 16, 1. / 64, 1. / 256}),
                  {1, 0},
                  {1, 0},
                  {usual.allgatherBucketSize, std::max(elements, usual.allgatherBucketSize)},
                  {1, 0},
                  {0, 1},
                  sizes(usual.prefetchBucketSize, elements, {0, 1. / 128, 1. / 64, 1. / 32, 1. / 16, 1. / 8, 1. / 4}),
                  sizes(usual.maxLiveParameters, elements, {1. / 16, 1. / 4, 1}),
                  sizes(usual.maxReuseDistance, elements, {0, 1. / 4, 1. / 2, 1, 2}),
                  {usual.paramPersistenceThreshold, 0, 1e4, 1e6, 1e7},
                  usual.micsShardSize > step.ranksPerNode ? std::vector<double>{0, 1} : std::vector<double>{0}};
  Search search(step, limit, std::move(choices), [&](const Setting& s) {
    DeepSpeedKnobs knobs = usual;
    knobs.stage = static_cast<int64_t>(s[0]);
    knobs.reduceBucketSize = s[1];
    knobs.overlapComm = s[2] > 0;
    knobs.contiguousGradients = s[3] > 0;
    knobs.allgatherBucketSize = s[4];
    knobs.multiRankBucketAllreduce = s[5] > 0;
    knobs.leafBlocks = s[6] > 0;
    knobs.prefetchBucketSize = s[7];
    knobs.maxLiveParameters = s[8];
    knobs.maxReuseDistance = s[9];
    knobs.paramPersistenceThreshold = s[10];
    knobs.hierarchicalGather = s[11] > 0;
    return deepSpeedSchedule(step, knobs);
  });
  // Also from each other stage, and from a lean setting of stage 3.
  const double bucket = elements / 16;
  auto start = [&](double stage, double prefetch, double reuse) {
    return Setting{stage, bucket, 1, 0, elements, 0, 1, prefetch, usual.maxLiveParameters, reuse, 1e5, 0};
  };
  std::vector<Setting> starts{start(3, elements / 64, 0), start(3, elements / 64, 2 * elements)};
  if (anyStage) starts.push_back(start(2, 0, 0)), starts.push_back(start(1, 0, 0));
  return search.run(std::move(starts));
}

BaselineResult playMics(const BaselineStep& step, const BaselineLimits& limit) {
  return bestOfShardSizes(step, [&](int64_t shards) {
    DeepSpeedKnobs knobs;
    knobs.micsShardSize = shards;
    return playDeepSpeed(step, limit, knobs);
  });
}

BaselineResult playHpz(const BaselineStep& step, const BaselineLimits& limit) {
  DeepSpeedKnobs knobs;
  knobs.hpzPartitionSize = step.ranksPerNode;
  return playDeepSpeed(step, limit, knobs);
}

BaselineResult playDeepCompile(const BaselineStep& step, const BaselineLimits& limit) {
  const double elements = static_cast<double>(parameterElements(step));
  Choices choices{{3, 2, 1},
                  {1, 0},
                  {1, 0},
                  sizes(DeepCompileKnobs().reduceBucketSize, elements, {1, 1. / 4, 1. / 16, 1. / 64, 1. / 256})};
  Search search(step, limit, std::move(choices), [&](const Setting& s) {
    DeepCompileKnobs knobs;
    knobs.stage = static_cast<int64_t>(s[0]);
    knobs.prefetch = s[1] > 0;
    knobs.selectiveGather = s[2] > 0;
    knobs.reduceBucketSize = s[3];
    return deepCompileSchedule(step, knobs, limit.device);
  });
  return search.run({{3, 0, 0, elements / 64}, {2, 0, 0, elements / 64}});
}

BaselineResult playDdp(const BaselineStep& step, const BaselineLimits& limit) {
  Search search(step, limit, {{25, 5, 10, 50, 100, 200, 400}},
                [&](const Setting& s) { return ddpSchedule(step, static_cast<uint64_t>(s[0]) << 20); });
  return search.run({});
}

BaselineResult playEager(const BaselineStep& step, const BaselineLimits& limit) {
  Search search(step, limit, {{1, 2, 4}},
                [&](const Setting& s) { return eagerSchedule(step, static_cast<uint32_t>(s[0])); });
  return search.run({});
}

// `usual`: what makes it ZeRO-Offload, ZeRO-Infinity or SuperOffload.
BaselineResult playOffload(const BaselineStep& step, const BaselineLimits& limit, const DeepSpeedOffloadKnobs& usual,
                           const std::vector<double>& stages, const std::vector<double>& optimizers,
                           const std::vector<double>& parameters) {
  const double elements = static_cast<double>(parameterElements(step));
  const bool files = optimizers.back() == double{plan::Buffer::FILE};
  const DeepSpeedKnobs& zero = usual.zero;
  const std::vector<double> either{0, 1}, never{0};
  Choices choices{stages,
                  optimizers,
                  parameters,
                  {usual.subGroupSize, 3e8, 1e8, 3e7, 1e7},
                  stages.front() == 3 || usual.superOffload ? std::vector<double>{1, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3}
                                                            : std::vector<double>{1},
                  files ? either : never,
                  files ? either : never,
                  sizes(zero.reduceBucketSize, elements, {1. / 4, 1. / 16, 1. / 64, 1. / 256}),
                  {1, 0},
                  {0, 1},
                  sizes(zero.prefetchBucketSize, elements, {0, 1. / 64, 1. / 32, 1. / 16, 1. / 8}),
                  sizes(zero.maxReuseDistance, elements, {0, 1. / 4, 2}),
                  {zero.paramPersistenceThreshold, 0, 1e6}};
  Search search(step, limit, std::move(choices), [&](const Setting& s) {
    DeepSpeedOffloadKnobs knobs = usual;
    knobs.zero.stage = static_cast<int64_t>(s[0]);
    knobs.optimizer = static_cast<plan::Buffer::Space>(s[1]);
    knobs.parameters = static_cast<plan::Buffer::Space>(s[2]);
    knobs.subGroupSize = s[3];
    knobs.ratio = s[4];
    knobs.pipelineRead = s[5] > 0, knobs.pipelineWrite = s[6] > 0;
    knobs.zero.reduceBucketSize = s[7];
    knobs.zero.contiguousGradients = s[8] > 0;
    knobs.zero.leafBlocks = s[9] > 0;
    knobs.zero.prefetchBucketSize = s[10];
    knobs.zero.maxReuseDistance = s[11];
    knobs.zero.paramPersistenceThreshold = s[12];
    return deepSpeedOffloadSchedule(step, knobs);
  });
  // Also from lean settings in every space.
  std::vector<Setting> starts;
  for (double stage : stages)
    for (double optimizer : optimizers)
      for (double space : parameters) {
        const double some = files ? 1 : 0;
        starts.push_back({stage, optimizer, space, 1e8, 1, some, some, elements / 64, 0, 1, elements / 64, 0, 1e5});
      }
  return search.run(std::move(starts));
}

// Optimizer state and gradients in host memory, updates by the host's processors after the backward pass.
BaselineResult playZeroOffload(const BaselineStep& step, const BaselineLimits& limit) {
  return playOffload(step, limit, {}, {3, 2}, {plan::Buffer::HOST}, {plan::Buffer::DEVICE});
}

// Stage 3, with state and parameters in host memory or in files.
BaselineResult playZeroInfinity(const BaselineStep& step, const BaselineLimits& limit) {
  return playOffload(step, limit, {}, {3}, {plan::Buffer::HOST, plan::Buffer::FILE},
                     {plan::Buffer::DEVICE, plan::Buffer::HOST, plan::Buffer::FILE});
}

BaselineResult playSuperOffload(const BaselineStep& step, const BaselineLimits& limit) {
  DeepSpeedOffloadKnobs usual;
  usual.superOffload = true;
  return playOffload(step, limit, usual, {3}, {plan::Buffer::HOST}, {plan::Buffer::DEVICE, plan::Buffer::HOST});
}

}  // namespace

bool better(const BaselineResult& a, const BaselineResult& b) {
  if (a.fits != b.fits) return a.fits;
  constexpr double kSame = 1e-6;
  if (a.fits && a.seconds < b.seconds * (1 - kSame)) return true;
  if (a.fits && a.seconds > b.seconds * (1 + kSame)) return false;
  return a.bytes < b.bytes;
}

const char* baselineName(Baseline baseline) {
  switch (baseline) {
    case Baseline::kFsdp2:
      return "fsdp2";
    case Baseline::kHsdp:
      return "hsdp";
    case Baseline::kDeepSpeed:
      return "deepspeed";
    case Baseline::kMics:
      return "mics";
    case Baseline::kHpz:
      return "hpz";
    case Baseline::kDeepCompile:
      return "deepcompile";
    case Baseline::kDdp:
      return "ddp";
    case Baseline::kZeroOffload:
      return "zero-offload";
    case Baseline::kZeroInfinity:
      return "zero-infinity";
    case Baseline::kSuperOffload:
      return "superoffload";
    case Baseline::kEager:
      break;
  }
  return "eager";
}

std::vector<Baseline> baselinesFor(const BaselineStep& step, bool offloads) {
  std::vector<Baseline> spaces;
  if (offloads && step.move) spaces = {Baseline::kZeroOffload, Baseline::kZeroInfinity, Baseline::kSuperOffload};
  if (step.ranks == 1 && offloads) return spaces;
  std::vector<Baseline> baselines{Baseline::kFsdp2, Baseline::kHsdp,        Baseline::kDeepSpeed, Baseline::kMics,
                                  Baseline::kHpz,   Baseline::kDeepCompile, Baseline::kDdp,       Baseline::kEager};
  std::erase_if(baselines, [&](Baseline baseline) {
    // A second copy among one rank is the whole.
    if (baseline == Baseline::kHpz) return !hasNodes(step) || step.ranksPerNode == 1;
    return (baseline == Baseline::kHsdp || baseline == Baseline::kMics) && !hasNodes(step);
  });
  baselines.insert(baselines.end(), spaces.begin(), spaces.end());
  return baselines;
}

BaselineResult playBaseline(const BaselineStep& step, Baseline baseline, const BaselineLimits& limits) {
  switch (baseline) {
    case Baseline::kFsdp2:
      return playFsdp2(step, limits, step.ranks);
    case Baseline::kHsdp:
      return playHsdp(step, limits);
    case Baseline::kDeepSpeed:
      return playDeepSpeed(step, limits, {});
    case Baseline::kMics:
      return playMics(step, limits);
    case Baseline::kHpz:
      return playHpz(step, limits);
    case Baseline::kDeepCompile:
      return playDeepCompile(step, limits);
    case Baseline::kDdp:
      return playDdp(step, limits);
    case Baseline::kZeroOffload:
      return playZeroOffload(step, limits);
    case Baseline::kZeroInfinity:
      return playZeroInfinity(step, limits);
    case Baseline::kSuperOffload:
      return playSuperOffload(step, limits);
    case Baseline::kEager:
      break;
  }
  return playEager(step, limits);
}

}  // namespace sheaf::schedule
