#include "passes/schedule/OverlapBound.h"

#include <algorithm>
#include <numeric>

namespace sheaf::schedule {
namespace {

// Edges by their source, or by their target.
class Graph {
 public:
  Graph(size_t nodes, std::span<const Dependence> edges, bool backward) : edges_(nodes) {
    for (const Dependence& d : edges)
      if (d.distance < 2) edges_[backward ? d.to : d.from].emplace_back(backward ? d.from : d.to, d.distance);
  }
  // The least sum of distances on a path from a node to each other one, up to 2.
  std::vector<uint8_t> distances(uint32_t from) const {
    std::vector<uint8_t> least(edges_.size(), 2);
    std::vector<uint32_t> rounds[2];
    auto reach = [&](uint32_t node, uint32_t distance) {
      if (distance < least[node]) least[node] = distance, rounds[distance].push_back(node);
    };
    for (auto [to, distance] : edges_[from]) reach(to, distance);
    for (uint32_t round : {0, 1})
      for (size_t i = 0; i < rounds[round].size(); ++i)
        for (auto [to, distance] : edges_[rounds[round][i]])
          if (round + distance < 2) reach(to, round + distance);
    return least;
  }

 private:
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> edges_;
};

// A set of transfers, and the computation that can overlap with none of them.
class SerialSet {
 public:
  SerialSet(const std::vector<double>& gains, const std::vector<double>& computing,
            const std::vector<std::vector<uint32_t>>& overlaps)
      : gains_(gains), computing_(computing), overlaps_(overlaps), overlapping_(computing.size()), in_(gains.size()) {
    seconds_ = std::accumulate(computing.begin(), computing.end(), 0.0);
  }
  double seconds() const { return seconds_; }
  bool empty() const { return members_ == 0; }
  void flip(uint32_t transfer) {
    in_[transfer] = !in_[transfer];
    members_ += in_[transfer] ? 1 : -1;
    seconds_ += in_[transfer] ? gains_[transfer] : -gains_[transfer];
    for (uint32_t c : overlaps_[transfer]) {
      if (in_[transfer] && overlapping_[c]++ == 0) seconds_ -= computing_[c];
      if (!in_[transfer] && --overlapping_[c] == 0) seconds_ += computing_[c];
    }
  }

 private:
  const std::vector<double>&gains_, &computing_;
  const std::vector<std::vector<uint32_t>>& overlaps_;
  std::vector<uint32_t> overlapping_;  // by computation: transfers of the set that can overlap with it
  std::vector<bool> in_;
  int64_t members_ = 0;
  double seconds_;
};

}  // namespace

OverlapBound::OverlapBound(const Loop& loop, std::span<const Dependence> order, const Excluded& excluded,
                           bool (*counts)(Unit), double slowdown)
    : loop_(loop), slowdown_(slowdown) {
  uint32_t nodes = loop.ops.size();
  for (const Dependence& d : order) nodes = std::max({nodes, d.from + 1, d.to + 1});
  for (uint32_t i = 0; i < loop.ops.size(); ++i) {
    if (loop.ops[i].seconds <= 0) continue;
    if (counts(loop.ops[i].unit)) transfers_.push_back(i);
    if (loop.ops[i].unit == Unit::kCompute) computations_.push_back(i);
  }
  Graph after(nodes, order, false), before(nodes, order, true);
  for (uint32_t transfer : transfers_) {
    // A computation cannot overlap with it if it comes after it and before its next instance, or the other way around.
    std::vector<uint8_t> later = after.distances(transfer), earlier = before.distances(transfer);
    std::vector<uint32_t>& overlaps = overlaps_.emplace_back();
    for (uint32_t c = 0; c < computations_.size(); ++c) {
      const uint32_t op = computations_[c];
      if (later[op] + earlier[op] > 1 && !(excluded && excluded(transfer, op))) overlaps.push_back(c);
    }
  }
}

double OverlapBound::serialSeconds() const {
  // A transfer outside of the set costs what it takes from computation by the slowdown; one in it, all its seconds.
  std::vector<double> gains, computing, overlapSeconds;
  double lost = 0;
  for (uint32_t transfer : transfers_) {
    gains.push_back(loop_.ops[transfer].seconds / (1 + slowdown_));
    lost += loop_.ops[transfer].seconds - gains.back();
  }
  for (uint32_t op : computations_) computing.push_back(loop_.ops[op].seconds);
  for (const std::vector<uint32_t>& overlaps : overlaps_) {
    double seconds = 0;
    for (uint32_t c : overlaps) seconds += computing[c];
    overlapSeconds.push_back(seconds);
  }
  // First, prefixes of the transfers sorted by the computation that can overlap with them.
  std::vector<uint32_t> sorted(transfers_.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](uint32_t a, uint32_t b) { return overlapSeconds[a] < overlapSeconds[b]; });
  SerialSet set(gains, computing, overlaps_);
  double best = 0;
  size_t taken = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    set.flip(sorted[i]);
    if (set.seconds() > best) best = set.seconds(), taken = i + 1;
  }
  if (taken == 0) return 0;
  for (size_t i = sorted.size(); i-- > taken;) set.flip(sorted[i]);
  // Then single transfers are added or removed as long as the bound grows.
  constexpr int kPasses = 8;
  bool raised = true;
  for (int pass = 0; pass < kPasses && raised; ++pass) {
    raised = false;
    for (uint32_t transfer : sorted) {
      set.flip(transfer);
      if (!set.empty() && set.seconds() > best * (1 + 1e-12))
        best = set.seconds(), raised = true;
      else
        set.flip(transfer);
    }
  }
  return best + lost;
}

}  // namespace sheaf::schedule
