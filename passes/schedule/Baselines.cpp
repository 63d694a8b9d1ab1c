#include "passes/schedule/Baselines.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "passes/schedule/BaselineGroups.h"
#include "passes/schedule/Ddp.h"
#include "passes/schedule/DeepCompile.h"
#include "passes/schedule/DeepSpeed.h"
#include "passes/schedule/Fsdp2.h"

namespace sheaf::schedule {
namespace {

// What each knob may be set to, as a number; the first value is the default.
using Choices = std::vector<std::vector<double>>;
using Setting = std::vector<double>;

class Search {
 public:
  Search(const BaselineStep& step, uint64_t limit, Choices choices,
         std::function<BaselineSchedule(const Setting&)> schedule)
      : step_(step), limit_(limit), choices_(std::move(choices)), schedule_(std::move(schedule)) {}

  static bool better(const BaselineResult& a, const BaselineResult& b) {
    if (a.fits != b.fits) return a.fits;
    constexpr double kSame = 1e-6;
    if (a.fits && a.seconds < b.seconds * (1 - kSame)) return true;
    if (a.fits && a.seconds > b.seconds * (1 + kSame)) return false;
    return a.bytes < b.bytes;
  }

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
    const bool fits = limit_ == 0 || cost.bytes <= limit_;
    return known_.emplace(setting, BaselineResult{cost.seconds, cost.bytes, std::move(schedule.knobs), fits})
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
  const uint64_t limit_;
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

BaselineResult better(BaselineResult a, BaselineResult b) {
  return Search::better(b, a) ? b : a;
}

// `shards`: of the mesh's shard dimension.
BaselineResult playFsdp2(const BaselineStep& step, uint64_t limit, int64_t shards) {
  std::vector<double> reshard{static_cast<double>(shards), 1};
  for (int64_t n = 2; n < shards; ++n)
    if (shards % n == 0) reshard.push_back(static_cast<double>(n));
  const double groups = static_cast<double>(blockGroups(step, 1, false).size());
  Choices choices{{1, 2, 3, 4, 6, 8}, {0, 1},      reshard, {0, 1, groups / 8, groups / 4, groups / 2, groups * 3 / 4},
                  {1, 2, 3, 4},       {1, 2, 3, 4}};
  Search search(step, limit, std::move(choices), [&](const Setting& s) {
    Fsdp2Knobs knobs;
    knobs.shards = shards;
    knobs.blocks = static_cast<uint32_t>(s[0]);
    knobs.splitRest = s[1] > 0;
    knobs.reshardTo = static_cast<int64_t>(s[2]);
    knobs.keptGroups = static_cast<uint32_t>(s[3]);
    knobs.forwardPrefetch = static_cast<uint32_t>(s[4]);
    knobs.backwardPrefetch = static_cast<uint32_t>(s[5]);
    return fsdp2Schedule(step, knobs);
  });
  // Also from parameters that stay.
  return search.run({{1, 0, 1, 0, 1, 1}});
}

// The best of a system that shards among so many ranks and replicates among the others.
template <typename Play>
BaselineResult bestOfShardSizes(const BaselineStep& step, Play play) {
  std::optional<BaselineResult> best;
  for (int64_t shards : shardSizes(step)) {
    BaselineResult found = play(shards);
    best = best ? better(std::move(*best), std::move(found)) : std::move(found);
  }
  return std::move(*best);
}

BaselineResult playHsdp(const BaselineStep& step, uint64_t limit) {
  return bestOfShardSizes(step, [&](int64_t shards) { return playFsdp2(step, limit, shards); });
}

// `usual`: MiCS' and hpZ's settings, which are for stage 3 only.
BaselineResult playDeepSpeed(const BaselineStep& step, uint64_t limit, const DeepSpeedKnobs& usual) {
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

BaselineResult playMics(const BaselineStep& step, uint64_t limit) {
  return bestOfShardSizes(step, [&](int64_t shards) {
    DeepSpeedKnobs knobs;
    knobs.micsShardSize = shards;
    return playDeepSpeed(step, limit, knobs);
  });
}

BaselineResult playHpz(const BaselineStep& step, uint64_t limit) {
  DeepSpeedKnobs knobs;
  knobs.hpzPartitionSize = step.ranksPerNode;
  return playDeepSpeed(step, limit, knobs);
}

BaselineResult playDeepCompile(const BaselineStep& step, uint64_t limit) {
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
    return deepCompileSchedule(step, knobs, limit);
  });
  return search.run({{3, 0, 0, elements / 64}, {2, 0, 0, elements / 64}});
}

BaselineResult playDdp(const BaselineStep& step, uint64_t limit) {
  Search search(step, limit, {{25, 5, 10, 50, 100, 200, 400}},
                [&](const Setting& s) { return ddpSchedule(step, static_cast<uint64_t>(s[0]) << 20); });
  return search.run({});
}

BaselineResult playEager(const BaselineStep& step, uint64_t limit) {
  Search search(step, limit, {{1, 2, 4}},
                [&](const Setting& s) { return eagerSchedule(step, static_cast<uint32_t>(s[0])); });
  return search.run({});
}

}  // namespace

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
    case Baseline::kEager:
      break;
  }
  return "eager";
}

std::vector<Baseline> baselinesFor(const BaselineStep& step) {
  std::vector<Baseline> baselines{Baseline::kFsdp2, Baseline::kHsdp,        Baseline::kDeepSpeed, Baseline::kMics,
                                  Baseline::kHpz,   Baseline::kDeepCompile, Baseline::kDdp,       Baseline::kEager};
  std::erase_if(baselines, [&](Baseline baseline) {
    // A second copy among one rank is the whole.
    if (baseline == Baseline::kHpz) return !hasNodes(step) || step.ranksPerNode == 1;
    return (baseline == Baseline::kHsdp || baseline == Baseline::kMics) && !hasNodes(step);
  });
  return baselines;
}

BaselineResult playBaseline(const BaselineStep& step, Baseline baseline, uint64_t memoryLimit) {
  switch (baseline) {
    case Baseline::kFsdp2:
      return playFsdp2(step, memoryLimit, step.ranks);
    case Baseline::kHsdp:
      return playHsdp(step, memoryLimit);
    case Baseline::kDeepSpeed:
      return playDeepSpeed(step, memoryLimit, {});
    case Baseline::kMics:
      return playMics(step, memoryLimit);
    case Baseline::kHpz:
      return playHpz(step, memoryLimit);
    case Baseline::kDeepCompile:
      return playDeepCompile(step, memoryLimit);
    case Baseline::kDdp:
      return playDdp(step, memoryLimit);
    case Baseline::kEager:
      break;
  }
  return playEager(step, memoryLimit);
}

}  // namespace sheaf::schedule
