#include "passes/schedule/BaselineGroups.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

namespace sheaf::schedule {
namespace {

template <typename Member>
uint64_t sumOf(const BaselineStep& step, Member member) {
  return std::accumulate(step.parameters.begin(), step.parameters.end(), uint64_t{0},
                         [&](uint64_t sum, const BaselineParameter& p) { return sum + p.*member; });
}

void extend(std::optional<GroupVisit>& visit, uint32_t computation) {
  if (!visit) visit = GroupVisit{computation, computation};
  visit->first = std::min(visit->first, computation);
  visit->last = std::max(visit->last, computation);
}

// The first computation that uses a parameter of a block.
uint32_t firstBlockUse(const BaselineStep& step) {
  uint32_t first = kNone;
  for (const BaselineParameter& p : step.parameters)
    if (p.block != kNone && !p.uses.empty()) first = std::min(first, p.uses.front());
  return first;
}

bool isEmbedding(const BaselineStep& step, const BaselineParameter& p, uint32_t firstBlock) {
  return std::all_of(p.uses.begin(), p.uses.end(),
                     [&](uint32_t use) { return use < firstBlock || use >= step.backward; });
}

}  // namespace

void ParameterGroup::add(const BaselineStep& step, uint32_t parameter) {
  const BaselineParameter& p = step.parameters[parameter];
  parameters.push_back(parameter);
  bytes += p.bytes;
  gradientBytes += p.gradientBytes;
  for (uint32_t use : p.uses) extend(use < step.backward ? forward : backward, use);
  if (p.gradientComplete == kNone) return;
  firstGradient = std::min(firstGradient, p.firstGradient);
  gradientComplete = gradientComplete == kNone ? p.gradientComplete : std::max(gradientComplete, p.gradientComplete);
}

std::vector<ParameterGroup> blockGroups(const BaselineStep& step, uint32_t blocks, bool splitRest) {
  constexpr uint32_t kRest = kNone, kEmbeddings = kNone - 1;
  const uint32_t firstBlock = firstBlockUse(step);
  std::map<uint32_t, ParameterGroup> groups;
  for (uint32_t i = 0; i < step.parameters.size(); ++i) {
    const BaselineParameter& p = step.parameters[i];
    const uint32_t key = p.block != kNone                                ? p.block / blocks
                         : splitRest && isEmbedding(step, p, firstBlock) ? kEmbeddings
                                                                         : kRest;
    ParameterGroup& group = groups[key];
    group.ofBlocks = key != kRest;
    group.add(step, i);
  }
  std::vector<ParameterGroup> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

BaselineReduction reduceToShards(const BaselineStep& step, uint64_t bytes, int64_t shards) {
  BaselineReduction reduction;
  reduction.transfer = transferOf(step, {plan::REDUCE_SCATTER, bytes, shards});
  reduction.bytes = bytes;
  if (shards < step.ranks)
    reduction.across =
        transferOf(step, {plan::ALL_REDUCE, bytes / static_cast<uint64_t>(shards), step.ranks / shards, shards});
  return reduction;
}

std::vector<BaselineReduction> reduceScatterGroups(const BaselineStep& step, const std::vector<ParameterGroup>& groups,
                                                   int64_t shards) {
  std::vector<BaselineReduction> reductions;
  for (const ParameterGroup& group : groups) {
    if (group.gradientComplete == kNone) continue;
    BaselineReduction& reduction = reductions.emplace_back(reduceToShards(step, group.gradientBytes, shards));
    reduction.first = group.firstGradient;
    reduction.ready = group.gradientComplete;
  }
  std::stable_sort(reductions.begin(), reductions.end(),
                   [](const BaselineReduction& a, const BaselineReduction& b) { return a.ready < b.ready; });
  return reductions;
}

std::vector<GradientBucket> gradientBuckets(const BaselineStep& step, uint64_t elements) {
  std::vector<const BaselineParameter*> trained;
  for (const BaselineParameter& p : step.parameters)
    if (p.gradientComplete != kNone) trained.push_back(&p);
  std::stable_sort(trained.begin(), trained.end(), [](const BaselineParameter* a, const BaselineParameter* b) {
    return a->gradientComplete < b->gradientComplete;
  });
  std::vector<GradientBucket> buckets;
  for (const BaselineParameter* p : trained) {
    if (!buckets.empty() && buckets.back().elements + p->elements > elements)
      buckets.back().ready = p->gradientComplete;
    if (buckets.empty() || buckets.back().elements + p->elements > elements)
      buckets.push_back({0, 0, p->firstGradient, static_cast<uint32_t>(step.compute.size() - 1)});
    buckets.back().elements += p->elements;
    buckets.back().bytes += p->gradientBytes;
    buckets.back().first = std::min(buckets.back().first, p->firstGradient);
  }
  return buckets;
}

uint64_t parameterElements(const BaselineStep& step) {
  return sumOf(step, &BaselineParameter::elements);
}
uint64_t parameterBytes(const BaselineStep& step) {
  return sumOf(step, &BaselineParameter::bytes);
}
uint64_t gradientBytes(const BaselineStep& step) {
  return sumOf(step, &BaselineParameter::gradientBytes);
}

uint64_t trainedElements(const BaselineStep& step) {
  uint64_t sum = 0;
  for (const BaselineParameter& p : step.parameters)
    if (p.gradientBytes > 0) sum += p.elements;
  return sum;
}

uint64_t gradientWidth(const BaselineStep& step) {
  uint64_t width = 0;
  for (const BaselineParameter& p : step.parameters)
    if (p.gradientBytes > 0) width = std::max(width, p.gradientBytes / p.elements);
  return width;
}

uint64_t shardedStateBytes(const BaselineStep& step, int64_t shards) {
  return step.otherBytes +
         (parameterBytes(step) + gradientBytes(step) + step.optimizerBytes) / static_cast<uint64_t>(shards);
}

double shardedUpdateSeconds(const BaselineStep& step, int64_t shards) {
  return step.updateSecondsPerElement * static_cast<double>(trainedElements(step)) / static_cast<double>(shards);
}

BaselineTransfer scalarReduce(const BaselineStep& step, int64_t ranks) {
  return transferOf(step, {plan::ALL_REDUCE, sizeof(float), ranks});
}

std::string numberText(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2g", number);
  return text;
}

}  // namespace sheaf::schedule
