// DeepCompile (deepspeed/compile): gathers of single parameters, moved by passes over the graphs of the forward and the
// backward pass.
#include "passes/schedule/DeepCompile.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "passes/schedule/BaselineGroups.h"
#include "runtime/base/Text.h"

namespace sheaf::schedule {
namespace {

// Constants of passes/prefetch.py and passes/selective_gather.py.
constexpr double kMemoryMargin = 0.1, kFuseFactor = 1.2;
constexpr uint64_t kMaxFuseSize = 1'000'000'000, kMaxBufferedSize = 4'000'000'000;

// A parameter's gather in one of the two graphs.
struct ParameterVisit {
  uint32_t parameter = 0;
  GroupVisit span;
};

class Stage3 {
 public:
  Stage3(const BaselineStep& step, const DeepCompileKnobs& knobs, uint64_t deviceBytes, uint64_t constantBytes)
      : step_(step), knobs_(knobs), constantBytes_(constantBytes), persistent_(step.parameters.size()) {
    usable_ = deviceBytes == 0 ? std::numeric_limits<uint64_t>::max()
                               : static_cast<uint64_t>(static_cast<double>(deviceBytes) * (1 - kMemoryMargin));
    for (uint32_t p = 0; p < step.parameters.size(); ++p) {
      ParameterGroup one;
      one.add(step, p);
      if (one.forward) visits_[0].push_back({p, *one.forward});
      if (one.backward) visits_[1].push_back({p, *one.backward});
    }
    for (std::vector<ParameterVisit>& visits : visits_)
      std::stable_sort(visits.begin(), visits.end(),
                       [](const ParameterVisit& a, const ParameterVisit& b) { return a.span.first < b.span.first; });
    findPeaks();
  }

  void addTo(BaselineSchedule& s) {
    if (knobs_.selectiveGather) selectPersistent();
    for (int backward : {0, 1}) {
      std::vector<Launch> launches = knobs_.prefetch ? prefetch(backward) : atUse(backward);
      for (Launch& launch : launches) addGather(launch, backward, s);
    }
    for (uint32_t p = 0; p < step_.parameters.size(); ++p)
      if (persistent_[p]) s.constantBytes += step_.parameters[p].bytes;
  }

 private:
  // Gathers that are launched together, before the computation `start`.
  struct Launch {
    uint32_t start = 0;
    std::vector<const ParameterVisit*> visits;
  };

  uint64_t bytesOf(const ParameterVisit& visit) const { return step_.parameters[visit.parameter].bytes; }
  uint64_t bytesOf(const std::vector<const ParameterVisit*>& visits) const {
    uint64_t bytes = 0;
    for (const ParameterVisit* visit : visits) bytes += bytesOf(*visit);
    return bytes;
  }
  double seconds(uint64_t bytes) const { return gatherOf(bytes).seconds; }
  BaselineTransfer gatherOf(uint64_t bytes) const { return transferOf(step_, {plan::ALL_GATHER, bytes, step_.ranks}); }

  // The profile that the passes see: memory during each computation if parameters are gathered at their use.
  void findPeaks() {
    std::vector<int64_t> change(step_.compute.size() + 1);
    for (const std::vector<ParameterVisit>& visits : visits_)
      for (const ParameterVisit& visit : visits) {
        change[visit.span.first] += static_cast<int64_t>(bytesOf(visit));
        change[visit.span.last + 1] -= static_cast<int64_t>(bytesOf(visit));
      }
    int64_t gathered = 0;
    for (size_t c = 0; c < step_.compute.size(); ++c)
      peaks_.push_back(constantBytes_ + step_.liveBytes[c] + static_cast<uint64_t>(gathered += change[c]));
  }

  // selective_gather: the parameters that cost most time per byte stay from the forward to the backward pass, up to the
  // first that does not fit.
  void selectPersistent() {
    const uint64_t peak = *std::max_element(peaks_.begin(), peaks_.end());
    const uint64_t available = usable_ - std::min(usable_, peak);
    std::vector<double> time(step_.parameters.size());
    for (const std::vector<ParameterVisit>& visits : visits_)
      for (const ParameterVisit& visit : visits) time[visit.parameter] += seconds(bytesOf(visit));
    std::vector<uint32_t> order(step_.parameters.size());
    std::iota(order.begin(), order.end(), 0);
    auto perByte = [&](uint32_t p) {
      return time[p] / static_cast<double>(std::max<uint64_t>(step_.parameters[p].bytes, 1));
    };
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return perByte(a) > perByte(b); });
    uint64_t kept = 0;
    for (uint32_t p : order) {
      if (kept + step_.parameters[p].bytes > available) break;
      kept += step_.parameters[p].bytes;
      persistent_[p] = true;
    }
  }

  std::vector<Launch> atUse(int backward) const {
    std::vector<Launch> launches;
    for (const ParameterVisit& visit : visits_[backward]) launches.push_back({visit.span.first, {&visit}});
    return launches;
  }

  // schedule_prefetch: backwards through the graph, gathers are collected and fused, and launched where memory or the
  // gathered bytes would exceed their limit; what is left, at the graph's begin.
  std::vector<Launch> prefetch(int backward) const {
    const uint32_t begin = backward ? step_.backward : 0, end = backward ? step_.compute.size() : step_.backward;
    const std::vector<ParameterVisit>& visits = visits_[backward];
    // What the graph finds: activations too, in the backward pass.
    const uint64_t inputs = constantBytes_ + (begin > 0 ? step_.liveBytes[begin - 1] : 0);
    std::vector<Launch> launches;  // the last first
    std::vector<std::vector<const ParameterVisit*>> groups;
    std::vector<const ParameterVisit*> open;
    uint64_t waiting = 0;
    size_t left = visits.size();
    for (uint32_t c = end; c-- > begin;) {
      const uint64_t peakBefore = c > begin ? peaks_[c - 1] : inputs;
      while (waiting > 0 && (waiting > kMaxBufferedSize || peakBefore > usable_ - std::min(usable_, waiting))) {
        if (groups.empty()) groups.push_back(std::move(open)), open.clear();
        waiting -= bytesOf(groups.front());
        launches.push_back({c + 1, std::move(groups.front())});
        groups.erase(groups.begin());
      }
      for (; left > 0 && visits[left - 1].span.first == c; --left) {
        const ParameterVisit& visit = visits[left - 1];
        const uint64_t current = bytesOf(open), next = bytesOf(visit);
        const bool fuse = std::max(seconds(current), seconds(next)) * kFuseFactor > seconds(current + next) &&
                          current + next < kMaxFuseSize;
        if (!open.empty() && !fuse) groups.push_back(std::move(open)), open.clear();
        open.push_back(&visit);
        waiting += next;
      }
    }
    for (std::vector<const ParameterVisit*>& group : groups) launches.push_back({begin, std::move(group)});
    if (!open.empty()) launches.push_back({begin, std::move(open)});
    std::reverse(launches.begin(), launches.end());
    return launches;
  }

  // A persistent parameter is gathered when it is first used after an update, into memory that it keeps.
  void addGather(const Launch& launch, int backward, BaselineSchedule& s) const {
    BaselineGather gather;
    gather.start = launch.start;
    gather.first = kNone;
    uint64_t bytes = 0;
    for (const ParameterVisit* visit : launch.visits) {
      const bool persistent = persistent_[visit->parameter];
      if (persistent && backward && step_.parameters[visit->parameter].uses.front() < step_.backward) continue;
      gather.first = std::min(gather.first, visit->span.first);
      bytes += bytesOf(*visit);
      if (!persistent) gather.parts.push_back({bytesOf(*visit), visit->span.last});
    }
    if (bytes == 0) return;
    gather.transfer = gatherOf(bytes);
    s.gathers.push_back(std::move(gather));
  }

  const BaselineStep& step_;
  const DeepCompileKnobs& knobs_;
  const uint64_t constantBytes_;
  uint64_t usable_ = 0;
  std::vector<ParameterVisit> visits_[2];  // of the forward and of the backward graph
  std::vector<uint64_t> peaks_;            // by computation
  std::vector<bool> persistent_;           // by parameter
};

}  // namespace

BaselineSchedule deepCompileSchedule(const BaselineStep& step, const DeepCompileKnobs& knobs, uint64_t deviceBytes) {
  BaselineSchedule s;
  const bool sharded = knobs.stage == 3;
  // Gradients are copied into one of two buckets, which are allocated whole.
  s.constantBytes = 2 * static_cast<uint64_t>(knobs.reduceBucketSize) * gradientWidth(step);
  s.constantBytes +=
      sharded ? shardedStateBytes(step, step.ranks)
              : step.otherBytes + parameterBytes(step) + (gradientBytes(step) + step.optimizerBytes) / step.ranks;
  for (const GradientBucket& bucket : gradientBuckets(step, static_cast<uint64_t>(knobs.reduceBucketSize)))
    s.reductions.push_back(
        {transferOf(step, {sharded ? plan::REDUCE_SCATTER : plan::ALL_REDUCE, bucket.bytes, step.ranks}),
         0,
         bucket.first,
         bucket.ready,
         {}});
  if (sharded)
    Stage3(step, knobs, deviceBytes, s.constantBytes).addTo(s);
  else
    s.gathersOfUpdated.push_back(transferOf(step, {plan::ALL_GATHER, parameterBytes(step), step.ranks}));
  s.updateSeconds = shardedUpdateSeconds(step, step.ranks);
  s.norm = scalarReduce(step, step.ranks);
  s.knobs = cat("stage ", knobs.stage,
                !sharded                ? ""
                : !knobs.prefetch       ? ", no pass but zero3_compile"
                : knobs.selectiveGather ? ", prefetch, selective_gather"
                                        : ", prefetch",
                ", reduce_bucket_size ", numberText(knobs.reduceBucketSize));
  return s;
}

}  // namespace sheaf::schedule
