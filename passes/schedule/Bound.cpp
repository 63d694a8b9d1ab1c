#include "passes/schedule/Bound.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "passes/schedule/OverlapBound.h"

namespace sheaf::schedule {
namespace {

// A cycle in the graph that follows each node's parent edge, as that edge's indices; empty if there is none.
std::vector<size_t> parentCycle(std::span<const Dependence> edges, const std::vector<ptrdiff_t>& parent) {
  std::vector<size_t> visited(parent.size(), 0);
  for (size_t start = 0; start < parent.size(); ++start) {
    size_t node = start;
    while (visited[node] == 0 && parent[node] >= 0) {
      visited[node] = start + 1;
      node = edges[static_cast<size_t>(parent[node])].from;
    }
    if (parent[node] < 0 || visited[node] != start + 1) continue;
    std::vector<size_t> cycle;
    const size_t first = node;
    do {
      cycle.push_back(static_cast<size_t>(parent[node]));
      node = edges[cycle.back()].from;
    } while (node != first);
    return cycle;
  }
  return {};
}

// The dependences of every schedule: the data's, and that the computing stream finishes a round before it begins the
// next, by one more node between the rounds.
std::vector<Dependence> orderOfRounds(const Loop& loop, std::span<const Dependence> data) {
  std::vector<Dependence> order(data.begin(), data.end());
  const uint32_t between = loop.ops.size();
  for (uint32_t i = 0; i < between; ++i)
    if (loop.ops[i].stream == 0) order.push_back({i, between, 0}), order.push_back({between, i, 1});
  return order;
}

// Of transfers between spaces and updates on the host. Returns the seconds that they take from computation at least.
double spaceTerms(const Loop& loop, std::span<const Dependence> order, const OverlapBound::Excluded& excluded,
                  Bound& bound) {
  double units[kUnits] = {};
  for (const Op& op : loop.ops) {
    units[size_t(op.unit)] += op.seconds;
    if (joinsSpaces(op.unit)) bound.hostMemory += op.seconds * op.hostLoad;
  }
  auto term = [&](Unit unit, bool (*counts)(Unit), double slowdown) {
    const double seconds = units[size_t(unit)];
    if (seconds == 0) return 0.0;
    return std::max(seconds, OverlapBound(loop, order, excluded, counts, slowdown).serialSeconds());
  };
  bound.toDevice = term(
      Unit::kToDevice, [](Unit unit) { return unit == Unit::kToDevice; }, loop.copySlowdown);
  bound.toHost = term(
      Unit::kToHost, [](Unit unit) { return unit == Unit::kToHost; }, loop.copySlowdown);
  bound.fileIn = term(
      Unit::kFileIn, [](Unit unit) { return unit == Unit::kFileIn; }, loop.fileSlowdown);
  bound.fileOut = term(
      Unit::kFileOut, [](Unit unit) { return unit == Unit::kFileOut; }, loop.fileSlowdown);
  bound.hostCompute = term(
      Unit::kHostCompute, [](Unit unit) { return unit == Unit::kHostCompute; }, loop.copySlowdown);
  // While any of them runs, computation is slowed down once.
  return std::max({lostTo(units[size_t(Unit::kToDevice)], loop.copySlowdown),
                   lostTo(units[size_t(Unit::kToHost)], loop.copySlowdown),
                   lostTo(units[size_t(Unit::kHostCompute)], loop.copySlowdown),
                   lostTo(units[size_t(Unit::kFileIn)], loop.fileSlowdown),
                   lostTo(units[size_t(Unit::kFileOut)], loop.fileSlowdown)});
}

// The terms that hold without a limit.
Bound termsOf(const Loop& loop, std::span<const Dependence> order, const OverlapBound::Excluded& excluded) {
  Bound bound;
  double onNodeLink = 0, onNetwork = 0;
  bool apart = false;
  for (const Op& op : loop.ops) {
    if (op.unit == Unit::kCompute) bound.compute += op.seconds;
    if (usesNodeLink(op.unit)) onNodeLink += op.seconds;
    if (usesNetwork(op.unit)) onNetwork += op.seconds;
    apart |= op.unit == Unit::kNodeLink || op.unit == Unit::kNetwork;
  }
  // Transfers on different links may run at the same time, and then slow computation down once.
  bound.compute += std::max(loop.lostTo(onNodeLink, onNetwork), spaceTerms(loop, order, excluded, bound));
  bound.nodeLink =
      std::max(onNodeLink, OverlapBound(loop, order, excluded, usesNodeLink, loop.slowdown).serialSeconds());
  bound.network = bound.nodeLink;
  if (apart)
    bound.network =
        std::max(onNetwork, OverlapBound(loop, order, excluded, usesNetwork, loop.onNetwork()).serialSeconds());
  bound.communication = std::max(bound.nodeLink, bound.network);
  std::vector<Op> ops = loop.ops;
  ops.emplace_back();
  bound.cycle = longestCycle(ops, order, &bound.onCycle);
  std::erase(bound.onCycle, loop.ops.size());  // the node between rounds
  bound.seconds = bound.compute;
  // Terms may be equal but for rounding.
  constexpr double kMore = 1 + 1e-9;
  if (bound.communication > bound.seconds * kMore)
    bound.seconds = bound.communication, bound.by = !apart                           ? BoundBy::kCommunication
                                                    : bound.network > bound.nodeLink ? BoundBy::kNetwork
                                                                                     : BoundBy::kNodeLink;
  const std::pair<double, BoundBy> ofSpaces[] = {
      {bound.toDevice, BoundBy::kToDevice},       {bound.toHost, BoundBy::kToHost},
      {bound.fileIn, BoundBy::kFileIn},           {bound.fileOut, BoundBy::kFileOut},
      {bound.hostCompute, BoundBy::kHostCompute}, {bound.hostMemory, BoundBy::kHostMemory}};
  for (const auto& [seconds, by] : ofSpaces)
    if (seconds > bound.seconds * kMore) bound.seconds = seconds, bound.by = by;
  // Of equal terms the cycle is the more telling one.
  bool cyclic =
      bound.by != BoundBy::kCompute ? bound.cycle * kMore >= bound.seconds : bound.cycle > bound.seconds * kMore;
  if (cyclic) bound.seconds = std::max(bound.seconds, bound.cycle), bound.by = BoundBy::kCycle;
  return bound;
}

}  // namespace

const char* boundByName(BoundBy by) {
  static const char* const kNames[] = {"compute", "communication", "node link",    "network",
                                       "cycle",   "memory",        "to_device",    "to_host",
                                       "file_in", "file_out",      "host compute", "host memory"};
  return kNames[static_cast<int>(by)];
}

double longestCycle(std::span<const Op> ops, std::span<const Dependence> dependences, std::vector<uint32_t>* on) {
  // With edges sorted by the op they lead to, one pass relaxes any path within a round.
  std::vector<Dependence> edges(dependences.begin(), dependences.end());
  std::stable_sort(edges.begin(), edges.end(), [](const Dependence& a, const Dependence& b) { return a.to < b.to; });
  // Cycle cancelling: the ratio is raised to that of a better cycle until there is none. Each value is the ratio of
  // some cycle, so that the bound holds even if the search is cut off.
  constexpr int kMaxImprovements = 1000, kMaxPasses = 1000;
  double ratio = 0;
  for (int improvement = 0; improvement < kMaxImprovements; ++improvement) {
    std::vector<double> longest(ops.size(), 0);
    std::vector<ptrdiff_t> parent(ops.size(), -1);
    bool raised = false;
    for (int pass = 0; pass < kMaxPasses && !raised; ++pass) {
      bool changed = false;
      for (size_t e = 0; e < edges.size(); ++e) {
        const Dependence& edge = edges[e];
        const double length = longest[edge.from] + ops[edge.from].seconds - ratio * edge.distance;
        if (length <= longest[edge.to] + 1e-12 * (1 + longest[edge.to])) continue;
        longest[edge.to] = length;
        parent[edge.to] = static_cast<ptrdiff_t>(e);
        changed = true;
      }
      if (!changed) return ratio;
      double seconds = 0, distance = 0;
      const std::vector<size_t> cycle = parentCycle(edges, parent);
      for (size_t e : cycle) {
        seconds += ops[edges[e].from].seconds;
        distance += edges[e].distance;
      }
      if (distance <= 0 || seconds / distance <= ratio) continue;
      ratio = seconds / distance, raised = true;
      if (!on) continue;
      on->clear();
      for (size_t e : cycle) on->push_back(edges[e].from);
    }
    if (!raised) break;
  }
  return ratio;
}

Bound boundOf(const Loop& loop, std::span<const Dependence> data, const MemoryBound* memory) {
  const std::vector<Dependence> order = orderOfRounds(loop, data);
  if (!memory) return termsOf(loop, order, {});
  Loop free = loop;
  for (size_t i = 0; i < free.ops.size(); ++i) free.ops[i].seconds -= memory->forced[i];
  Bound bound = termsOf(free, order, {});
  bound.memory = termsOf(loop, order, [&](uint32_t transfer, uint32_t computation) {
                   return !memory->excluded[transfer].empty() && memory->excluded[transfer][computation];
                 }).seconds;
  if (bound.memory > bound.seconds * (1 + 1e-9)) bound.seconds = bound.memory, bound.by = BoundBy::kMemory;
  bound.seconds = std::max(bound.seconds, bound.memory);
  return bound;
}

}  // namespace sheaf::schedule
