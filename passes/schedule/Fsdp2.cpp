#include "passes/schedule/Fsdp2.h"

#include <algorithm>
#include <numeric>

#include "passes/schedule/BaselineGroups.h"
#include "runtime/base/Text.h"

namespace sheaf::schedule {
namespace {

// A gather, and the part of the gathered bytes that stays until the backward pass.
struct Visit {
  uint32_t group = 0;
  GroupVisit span;
  int64_t ranks = 1;  // that take part in the gather
};

void sortByFirst(std::vector<Visit>& visits) {
  std::stable_sort(visits.begin(), visits.end(),
                   [](const Visit& a, const Visit& b) { return a.span.first < b.span.first; });
}

class Fsdp2 {
 public:
  Fsdp2(const BaselineStep& step, const Fsdp2Knobs& knobs)
      : step_(step),
        knobs_(knobs),
        shards_(knobs.shards > 0 ? knobs.shards : step.ranks),
        groups_(blockGroups(step, knobs.blocks, knobs.splitRest)) {
    chooseKept();
    findVisits();
  }

  BaselineSchedule schedule() {
    BaselineSchedule s;
    for (size_t v = 0; v < forward_.size(); ++v) s.gathers.push_back(gather(forward_[v], forwardStart(v)));
    for (size_t v = 0; v < backward_.size(); ++v) s.gathers.push_back(gather(backward_[v], backwardStart(v)));
    s.held = std::move(held_);
    s.reductions = reduceScatterGroups(step_, groups_, shards_);
    // HSDP's all-reduce has a stream of its own (FSDPCommContext.all_reduce_stream).
    s.replicasApart = true;
    // Before it issues a reduction, the computing stream waits until fewer than `reduceBuffers` are under way
    // (FSDPParamGroup.post_backward).
    s.pending = knobs_.reduceBuffers;
    if (step_.clips) s.norm = scalarReduce(step_, shards_);
    s.updateSeconds = shardedUpdateSeconds(step_, shards_);
    s.constantBytes = shardedStateBytes(step_, shards_);
    s.knobs = text();
    return s;
  }

 private:
  // What is used last stays most cheaply. The root module is not resharded after its forward pass.
  void chooseKept() {
    kept_.assign(groups_.size(), knobs_.reshardTo == 1);
    std::vector<uint32_t> order(groups_.size());
    std::iota(order.begin(), order.end(), 0);
    auto lastForward = [&](uint32_t g) { return groups_[g].forward ? int64_t{groups_[g].forward->last} : -1; };
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return lastForward(a) > lastForward(b); });
    uint32_t count = 0;
    for (uint32_t g : order) {
      if (!groups_[g].ofBlocks) kept_[g] = true;
      if (groups_[g].ofBlocks && count++ < knobs_.keptGroups) kept_[g] = true;
    }
  }

  void findVisits() {
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      const ParameterGroup& group = groups_[g];
      if (group.forward && group.backward && kept_[g]) {
        forward_.push_back({g, {group.forward->first, group.backward->last}, shards_});
        continue;
      }
      if (group.forward) forward_.push_back({g, *group.forward, shards_});
      if (!group.backward) continue;
      const int64_t ranks = group.forward ? knobs_.reshardTo : shards_;
      backward_.push_back({g, *group.backward, ranks});
      if (group.forward && ranks < shards_)
        held_.push_back({group.bytes / ranks, group.forward->last, group.backward->first});
    }
    sortByFirst(forward_);
    sortByFirst(backward_);
  }

  // A gather waits for the copy-out of the one before the previous one, which is at the begin of that one's module
  // (FSDPParamGroup.wait_for_unshard in the forward pass). Explicit prefetching issues it so many modules earlier.
  uint32_t forwardStart(size_t visit) const {
    const size_t ahead = 1 + knobs_.forwardPrefetch;
    return visit < ahead ? 0 : forward_[visit - ahead].span.first;
  }
  // The first gather of the backward pass waits for the last copy-out of the forward pass, another one for that of the
  // module that prefetches it.
  uint32_t backwardStart(size_t visit) const {
    if (visit > 0) return backward_[visit - std::min<size_t>(visit, knobs_.backwardPrefetch)].span.first;
    uint32_t last = 0;
    for (const Visit& v : forward_) last = std::max(last, v.span.first);
    return last;
  }

  BaselineGather gather(const Visit& visit, uint32_t start) const {
    const uint64_t bytes = groups_[visit.group].bytes;
    return {transferOf(step_, {plan::ALL_GATHER, bytes, visit.ranks}),
            {},
            start,
            visit.span.first,
            {{bytes, visit.span.last}}};
  }

  std::string text() const {
    std::string text = knobs_.blocks == 1 ? "a group a block" : cat("a group every ", knobs_.blocks, " blocks");
    if (shards_ < step_.ranks) text = cat(step_.ranks / shards_, " replicas of ", shards_, " shards, ", text);
    if (knobs_.splitRest) text += ", embeddings apart";
    text += cat(", reshard_after_forward=", knobs_.reshardTo == 1         ? std::string("False")
                                            : knobs_.reshardTo == shards_ ? std::string("True")
                                                                          : std::to_string(knobs_.reshardTo));
    if (knobs_.reshardTo > 1 && knobs_.keptGroups > 0) text += cat(" but for the last ", knobs_.keptGroups, " groups");
    if (knobs_.forwardPrefetch != 1 || knobs_.backwardPrefetch != 1)
      text +=
          cat(", prefetching ", knobs_.forwardPrefetch, " modules forward and ", knobs_.backwardPrefetch, " backward");
    if (knobs_.reduceBuffers != 1) text += cat(", ", knobs_.reduceBuffers, " reduce-scatter input buffers");
    return text;
  }

  const BaselineStep& step_;
  const Fsdp2Knobs& knobs_;
  const int64_t shards_;
  std::vector<ParameterGroup> groups_;
  std::vector<bool> kept_;  // by group: from the forward to the backward pass
  std::vector<Visit> forward_, backward_;
  std::vector<HeldBytes> held_;
};

}  // namespace

BaselineSchedule fsdp2Schedule(const BaselineStep& step, const Fsdp2Knobs& knobs) {
  return Fsdp2(step, knobs).schedule();
}

BaselineSchedule eagerSchedule(const BaselineStep& step, uint32_t blocks) {
  Fsdp2Knobs knobs;
  knobs.blocks = blocks;
  knobs.reshardTo = step.ranks;
  BaselineSchedule schedule = fsdp2Schedule(step, knobs);
  for (BaselineGather& gather : schedule.gathers) gather.start = gather.first;
  schedule.pending = -1;
  schedule.knobs = blocks == 1 ? "a group a block" : cat("a group every ", blocks, " blocks");
  return schedule;
}

}  // namespace sheaf::schedule
