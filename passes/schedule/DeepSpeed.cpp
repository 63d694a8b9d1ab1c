#include "passes/schedule/DeepSpeed.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "passes/schedule/BaselineGroups.h"
#include "runtime/base/Text.h"

namespace sheaf::schedule {
namespace {

// The parameters of a module, used by consecutive computations of one pass: a step of DeepSpeed's trace.
struct TraceStep {
  std::vector<uint32_t> parameters;
  GroupVisit span;
};

// Modules in the order in which the forward and the backward pass run them. A parameter that is used again after two
// other blocks belongs to another module there, as a tied embedding does.
std::vector<TraceStep> traceOf(const BaselineStep& step, bool leafBlocks) {
  std::vector<uint32_t> blockOf(step.compute.size(), kNone);
  for (const BaselineParameter& p : step.parameters)
    for (uint32_t use : p.uses)
      if (p.block != kNone) blockOf[use] = p.block;
  // Blocks that computations before this one have entered, so that the blocks between two uses can be counted.
  std::vector<uint32_t> entered(step.compute.size() + 1);
  for (uint32_t c = 0, block = kNone; c < step.compute.size(); ++c) {
    entered[c + 1] = entered[c] + (blockOf[c] != kNone && blockOf[c] != block);
    if (blockOf[c] != kNone) block = blockOf[c];
  }
  std::map<std::tuple<bool, uint32_t, uint32_t>, TraceStep> steps;  // by pass, module and which of its visits
  for (uint32_t i = 0; i < step.parameters.size(); ++i) {
    const BaselineParameter& p = step.parameters[i];
    const bool whole = leafBlocks && p.block != kNone;
    const uint32_t unit = whole ? p.block : p.module + step.parameters.size();
    uint32_t visit = 0;
    for (size_t u = 0; u < p.uses.size(); ++u) {
      const bool backward = p.uses[u] >= step.backward;
      if (u > 0 && backward == (p.uses[u - 1] >= step.backward) && entered[p.uses[u]] - entered[p.uses[u - 1] + 1] >= 2)
        ++visit;
      TraceStep& at = steps.try_emplace({backward, unit, visit}, TraceStep{{}, {p.uses[u], p.uses[u]}}).first->second;
      if (at.parameters.empty() || at.parameters.back() != i) at.parameters.push_back(i);
      at.span = {std::min(at.span.first, p.uses[u]), std::max(at.span.last, p.uses[u])};
    }
  }
  std::vector<TraceStep> trace;
  for (auto& [key, at] : steps) trace.push_back(std::move(at));
  std::stable_sort(trace.begin(), trace.end(),
                   [](const TraceStep& a, const TraceStep& b) { return a.span.first < b.span.first; });
  return trace;
}

// What PartitionedParameterCoordinator does in a step whose trace it knows.
class Coordinator {
 public:
  Coordinator(const BaselineStep& step, const DeepSpeedKnobs& knobs, int64_t shards)
      : step_(step),
        knobs_(knobs),
        shards_(shards),
        trace_(traceOf(step, knobs.leafBlocks)),
        state_(step.parameters.size()) {
    for (uint32_t t = 0; t < trace_.size(); ++t)
      for (uint32_t p : trace_[t].parameters) queue_.push_back({p, t});
  }

  std::vector<BaselineGather> gathers() {
    for (uint32_t t = 0; t < trace_.size(); ++t) {
      fetch(t);
      prefetch(t);
      release(t);
    }
    return std::move(gathers_);
  }

  bool isPersistent(uint32_t parameter) const {
    return static_cast<double>(step_.parameters[parameter].elements) < knobs_.paramPersistenceThreshold;
  }

 private:
  struct State {
    bool available = false;
    uint32_t gather = 0, part = 0;  // where its bytes are held, if it is available
    int64_t fetchedFor = -1;        // the last step of the trace that a fetch has considered it for
  };
  struct Queued {
    uint32_t parameter, step;
  };

  // One gather of several parameters, issued when computation reaches a step of the trace.
  void gather(const std::vector<uint32_t>& parameters, uint32_t issued, uint32_t needed) {
    BaselineGather made;
    uint64_t bytes = 0;
    for (uint32_t p : parameters) {
      state_[p].available = true;
      state_[p].gather = gathers_.size();
      state_[p].part = made.parts.size();
      made.parts.push_back({step_.parameters[p].bytes, needed});
      bytes += step_.parameters[p].bytes;
      live_ += static_cast<double>(step_.parameters[p].elements);
    }
    addTransfers(made, bytes, trace_[issued].span.first >= step_.backward);
    made.start = trace_[issued].span.first;
    made.first = needed;
    gathers_.push_back(std::move(made));
  }

  // A gather that the backward pass issues finds the second copy, if there is one.
  void addTransfers(BaselineGather& made, uint64_t bytes, bool backward) const {
    const int64_t node = step_.ranksPerNode;
    if (backward && knobs_.hpzPartitionSize > 1) {
      made.transfer = transferOf(step_, {plan::ALL_GATHER, bytes, knobs_.hpzPartitionSize});
    } else if (knobs_.hierarchicalGather && shards_ > node) {
      made.transfer = transferOf(step_, {plan::ALL_GATHER, bytes / static_cast<uint64_t>(node), shards_ / node, node});
      made.second = transferOf(step_, {plan::ALL_GATHER, bytes, node});
    } else {
      made.transfer = transferOf(step_, {plan::ALL_GATHER, bytes, shards_});
    }
  }

  void fetch(uint32_t t) {
    std::vector<uint32_t> missing;
    for (uint32_t p : trace_[t].parameters)
      if (!state_[p].available && !isPersistent(p)) missing.push_back(p);
    if (!missing.empty()) gather(missing, t, trace_[t].span.first);
    while (next_ < queue_.size() && queue_[next_].step <= t) take();
  }
  const Queued& take() {
    const Queued& taken = queue_[next_++];
    State& state = state_[taken.parameter];
    state.fetchedFor = std::max<int64_t>(state.fetchedFor, taken.step);
    return taken;
  }

  void prefetch(uint32_t t) {
    const double most = std::min(knobs_.maxLiveParameters - live_, knobs_.prefetchBucketSize);
    std::vector<uint32_t> chosen;
    double elements = 0;
    uint32_t needed = kNone;
    while (next_ < queue_.size() && elements < most) {
      const Queued& taken = take();
      const uint32_t p = taken.parameter;
      if (state_[p].available || isPersistent(p) || std::find(chosen.begin(), chosen.end(), p) != chosen.end())
        continue;
      chosen.push_back(p);
      elements += static_cast<double>(step_.parameters[p].elements);
      needed = std::min(needed, trace_[taken.step].span.first);
    }
    if (!chosen.empty()) gather(chosen, t, needed);
  }

  void release(uint32_t t) {
    for (uint32_t p : trace_[t].parameters) {
      State& state = state_[p];
      if (!state.available) continue;
      uint32_t& last = gathers_[state.gather].parts[state.part].last;
      last = std::max(last, trace_[t].span.last);
      if (state.fetchedFor > t || isReusedSoon(p, t)) continue;
      state.available = false;
      live_ -= static_cast<double>(step_.parameters[p].elements);
    }
  }

  // Whether a module within the reuse distance uses it.
  bool isReusedSoon(uint32_t parameter, uint32_t t) const {
    double traversed = 0;
    for (uint32_t next = t + 1; next < trace_.size() && traversed < knobs_.maxReuseDistance; ++next)
      for (uint32_t p : trace_[next].parameters) {
        if (p == parameter) return true;
        traversed += static_cast<double>(step_.parameters[p].elements);
      }
    return false;
  }

  const BaselineStep& step_;
  const DeepSpeedKnobs& knobs_;
  const int64_t shards_;
  const std::vector<TraceStep> trace_;
  std::vector<State> state_;  // by parameter
  std::vector<Queued> queue_;
  size_t next_ = 0;  // in the queue
  double live_ = 0;  // elements that are available
  std::vector<BaselineGather> gathers_;
};

// The gradients' copies in one flat buffer per bucket, or the gradients themselves until they are reduced, and what the
// reduction flattens them into.
void reduceBuckets(const BaselineStep& step, double bucketSize, int64_t buffers, BaselineSchedule& s,
                   const std::function<BaselineReduction(const GradientBucket&)>& reduce) {
  uint64_t largest = 0;
  for (const GradientBucket& bucket : gradientBuckets(step, static_cast<uint64_t>(bucketSize))) {
    BaselineReduction& reduction = s.reductions.emplace_back(reduce(bucket));
    reduction.bytes = bucket.bytes;
    reduction.first = bucket.first;
    reduction.ready = bucket.ready;
    reduction.elements = bucket.elements;
    if (bucket.elements > 0) largest = std::max(largest, bucket.bytes / bucket.elements);
  }
  // Allocated whole, whatever is in them.
  s.constantBytes += static_cast<uint64_t>(buffers) * static_cast<uint64_t>(bucketSize) * largest;
  if (buffers > 0)
    for (BaselineReduction& reduction : s.reductions) reduction.bytes = 0;
}

BaselineSchedule stage3(const BaselineStep& step, const DeepSpeedKnobs& knobs) {
  BaselineSchedule s;
  const int64_t shards = knobs.micsShardSize > 0 ? knobs.micsShardSize : step.ranks;
  Coordinator coordinator(step, knobs, shards);
  s.gathers = coordinator.gathers();
  uint64_t persistent = 0, second = 0;
  for (uint32_t p = 0; p < step.parameters.size(); ++p)
    (coordinator.isPersistent(p) ? persistent : second) += step.parameters[p].bytes;
  if (persistent > 0) s.gathersOfUpdated.push_back(transferOf(step, {plan::ALL_GATHER, persistent, shards}));
  s.constantBytes = shardedStateBytes(step, shards) + persistent;
  // The second copy is allocated once and stays.
  if (knobs.hpzPartitionSize > 1) s.constantBytes += second / static_cast<uint64_t>(knobs.hpzPartitionSize);
  reduceBuckets(step, knobs.reduceBucketSize, knobs.contiguousGradients ? 1 : 0, s,
                [&](const GradientBucket& bucket) { return reduceToShards(step, bucket.bytes, shards); });
  // The host waits for the oldest of three reductions before it issues a fourth (max_param_reduce_events).
  s.pending = knobs.overlapComm ? 3 : 0;
  s.knobs = cat("stage 3, ", knobs.leafBlocks ? "blocks as leaf modules, " : "", "prefetch_bucket_size ",
                numberText(knobs.prefetchBucketSize), ", max_live_parameters ", numberText(knobs.maxLiveParameters),
                ", max_reuse_distance ", numberText(knobs.maxReuseDistance), ", param_persistence_threshold ",
                numberText(knobs.paramPersistenceThreshold));
  if (knobs.micsShardSize > 0)
    s.knobs += cat(", mics_shard_size ", shards, knobs.hierarchicalGather ? ", mics_hierarchical_params_gather" : "");
  if (knobs.hpzPartitionSize > 1) s.knobs += cat(", zero_hpz_partition_size ", knobs.hpzPartitionSize);
  return s;
}

// Stages 1 and 2: parameters are whole, their gradients are reduced in buckets and updated parameters gathered at the
// end.
BaselineSchedule stage12(const BaselineStep& step, const DeepSpeedKnobs& knobs) {
  BaselineSchedule s;
  const uint64_t ranks = step.ranks;
  s.constantBytes = step.otherBytes + parameterBytes(step) + step.optimizerBytes / ranks;
  const double share = static_cast<double>(trainedElements(step)) / static_cast<double>(ranks);
  reduceBuckets(step, knobs.reduceBucketSize, knobs.contiguousGradients ? (knobs.overlapComm ? 2 : 1) : 0, s,
                [&](const GradientBucket& bucket) {
                  BaselineReduction reduction;
                  reduction.transfer = transferOf(step, {plan::ALL_REDUCE, bucket.bytes, step.ranks});
                  if (knobs.multiRankBucketAllreduce) return reduction;
                  // A reduce to each rank whose part the bucket touches; each sends as much as a reduce-scatter.
                  const double owners =
                      std::min(static_cast<double>(ranks), std::ceil(static_cast<double>(bucket.elements) / share) + 1);
                  const uint64_t bytes = static_cast<uint64_t>(static_cast<double>(bucket.bytes) / owners);
                  reduction.transfer = transferOf(step, {plan::REDUCE_SCATTER, bytes, step.ranks});
                  reduction.transfer.seconds *= owners;
                  return reduction;
                });
  s.pending = knobs.overlapComm ? 1 : 0;
  if (knobs.stage == 1) {
    // Gradients stay whole until the update.
    for (const BaselineParameter& p : step.parameters)
      if (p.gradientBytes > 0)
        s.held.push_back({p.gradientBytes, p.firstGradient, static_cast<uint32_t>(step.compute.size() - 1)});
    for (BaselineReduction& reduction : s.reductions) reduction.bytes = 0;
  } else {
    s.constantBytes += gradientBytes(step) / ranks;
  }
  const double elements = static_cast<double>(trainedElements(step));
  const double count = std::max(1.0, std::floor(elements / knobs.allgatherBucketSize));
  const uint64_t bytes = static_cast<uint64_t>(static_cast<double>(parameterBytes(step)) / count);
  s.gathersOfUpdated.assign(static_cast<size_t>(count), transferOf(step, {plan::ALL_GATHER, bytes, step.ranks}));
  s.knobs = cat("stage ", knobs.stage, knobs.multiRankBucketAllreduce ? "" : ", use_multi_rank_bucket_allreduce false",
                ", allgather_bucket_size ", numberText(knobs.allgatherBucketSize));
  return s;
}

}  // namespace

BaselineSchedule deepSpeedSchedule(const BaselineStep& step, const DeepSpeedKnobs& knobs) {
  BaselineSchedule s = knobs.stage == 3 ? stage3(step, knobs) : stage12(step, knobs);
  const int64_t shards = knobs.stage == 3 && knobs.micsShardSize > 0 ? knobs.micsShardSize : step.ranks;
  s.updateSeconds = shardedUpdateSeconds(step, shards);
  // The norm is computed whether it clips or not: one all-reduce for each group of 1e9 parameters (sub_group_size).
  constexpr double kSubGroup = 1e9;
  const double groups = knobs.stage == 3 ? std::ceil(static_cast<double>(trainedElements(step)) / kSubGroup) : 1;
  s.norm = scalarReduce(step, shards);
  s.norm.seconds *= groups;
  s.knobs +=
      cat(", reduce_bucket_size ", numberText(knobs.reduceBucketSize), knobs.overlapComm ? "" : ", overlap_comm false",
          knobs.contiguousGradients ? "" : ", contiguous_gradients false");
  return s;
}

}  // namespace sheaf::schedule
