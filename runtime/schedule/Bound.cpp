#include "runtime/schedule/Bound.h"

#include <algorithm>
#include <cstddef>
#include <vector>

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

// Edges by the node they leave, or by the one they enter.
class Graph {
 public:
  Graph(size_t nodes, std::span<const Dependence> edges, bool backward) : edges_(nodes) {
    for (const Dependence& d : edges)
      edges_[backward ? d.to : d.from].emplace_back(backward ? d.from : d.to, d.distance);
  }
  // The least sum of distances on a path from a node to each other one; 2 stands for more than 1.
  std::vector<uint8_t> distances(uint32_t from) const {
    std::vector<uint8_t> least(edges_.size(), 2);
    std::vector<uint32_t> rounds[2];
    auto reach = [&](uint32_t node, uint32_t distance) {
      if (distance < least[node]) least[node] = distance, rounds[distance].push_back(node);
    };
    for (auto [to, distance] : edges_[from])
      if (distance < 2) reach(to, distance);
    for (uint32_t round : {0, 1})
      for (size_t i = 0; i < rounds[round].size(); ++i)
        for (auto [to, distance] : edges_[rounds[round][i]])
          if (round + distance < 2) reach(to, round + distance);
    return least;
  }

 private:
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> edges_;
};

// Transfers one after the other, and with them the computation that cannot run beside any of them: it needs each of
// them and each of them needs it, within one round's length. Of the sets of the longest transfers the one that gives
// most.
double serialCommunication(const Loop& loop, std::span<const Dependence> data) {
  std::vector<uint32_t> transfers;
  for (uint32_t i = 0; i < loop.ops.size(); ++i)
    if (loop.ops[i].unit == Unit::kLink && loop.ops[i].seconds > 0) transfers.push_back(i);
  std::stable_sort(transfers.begin(), transfers.end(),
                   [&](uint32_t a, uint32_t b) { return loop.ops[a].seconds > loop.ops[b].seconds; });
  Graph after(loop.ops.size(), data, false), before(loop.ops.size(), data, true);
  std::vector<bool> apart(loop.ops.size());
  double computing = 0, best = 0, moving = 0;
  for (uint32_t i = 0; i < loop.ops.size(); ++i)
    if (loop.ops[i].unit == Unit::kCompute) apart[i] = true, computing += loop.ops[i].seconds;
  for (uint32_t transfer : transfers) {
    moving += loop.ops[transfer].seconds;
    if (computing > 0) {
      std::vector<uint8_t> later = after.distances(transfer), earlier = before.distances(transfer);
      for (uint32_t i = 0; i < loop.ops.size(); ++i)
        if (apart[i] && later[i] + earlier[i] > 1) apart[i] = false, computing -= loop.ops[i].seconds;
    }
    best = std::max(best, moving + std::max(computing, 0.0));
  }
  return best;
}

}  // namespace

const char* boundByName(BoundBy by) {
  static const char* const kNames[] = {"compute", "communication", "cycle", "memory"};
  return kNames[static_cast<int>(by)];
}

double longestCycle(std::span<const Op> ops, std::span<const Dependence> dependences) {
  // Edges in the order of the ops they lead to: one pass follows any path within a round.
  std::vector<Dependence> edges(dependences.begin(), dependences.end());
  std::stable_sort(edges.begin(), edges.end(), [](const Dependence& a, const Dependence& b) { return a.to < b.to; });
  // A ratio is raised to that of a better cycle until none is left: each value is that of some cycle, so that the bound
  // holds even if the search ended early. Cycles through the step boundary are few and so are the rounds.
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
      for (size_t e : parentCycle(edges, parent)) {
        seconds += ops[edges[e].from].seconds;
        distance += edges[e].distance;
      }
      if (distance > 0 && seconds / distance > ratio) ratio = seconds / distance, raised = true;
    }
    if (!raised) break;
  }
  return ratio;
}

Bound boundOf(const Loop& loop, std::span<const Dependence> data) {
  Bound bound;
  for (const Op& op : loop.ops) {
    if (op.unit == Unit::kCompute) bound.compute += op.seconds;
    if (op.unit == Unit::kLink) bound.communication += op.seconds;
  }
  // Where the link has little to do the sum of it all is far from the computation's.
  double compute = bound.compute;
  bound.compute += bound.communication * loop.slowdown / (1 + loop.slowdown);
  if (2 * bound.communication > compute) bound.communication = serialCommunication(loop, data);
  bound.cycle = longestCycle(loop.ops, data);
  bound.seconds = bound.compute;
  if (bound.communication > bound.seconds) bound.seconds = bound.communication, bound.by = BoundBy::kCommunication;
  if (bound.cycle > bound.seconds) bound.seconds = bound.cycle, bound.by = BoundBy::kCycle;
  return bound;
}

}  // namespace sheaf::schedule
