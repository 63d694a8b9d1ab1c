#include "test/passes/schedule/ExactSchedule.h"

#include <cmath>
#include <limits>
#include <vector>

namespace sheaf::schedule {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kPrecision = 1e-4, kRounding = 1e-9;

// Of a buffer that a gather writes.
struct Life {
  uint32_t gather = 0;
  uint64_t bytes = 0;
  std::vector<uint32_t> ends;  // it is over when all of these are
};

std::vector<Life> livesOf(const StepModel& model) {
  std::vector<Life> lives;
  for (uint32_t g = 0; g < model.nodes.size(); ++g)
    for (const Access& written : model.nodes[g].accesses) {
      if (model.nodes[g].kind != Node::Kind::kGather || !written.write) continue;
      Life life{g, model.buffers[written.buffer].bytes, {g}};
      for (uint32_t i = 0; i < model.nodes.size(); ++i)
        for (const Access& read : model.nodes[i].accesses)
          if (!read.write && read.buffer == written.buffer) life.ends.push_back(i);
      lives.push_back(std::move(life));
    }
  return lives;
}

// Whether a period is possible: start times s with s_j - s_i >= apart[i][j], for two ops of one unit some whole number
// k with s_j >= s_i + p_i - T k and s_i >= s_j + p_j - T (1 - k), and the same with the ends of lives for two that do
// not fit together.
class Feasibility {
 public:
  Feasibility(const StepModel& model, uint64_t limit, double period, int64_t& nodes)
      : model_(model), limit_(limit), period_(period), n_(model.nodes.size()), nodes_(nodes) {
    if (limit > 0) lives_ = livesOf(model);
    for (uint32_t i = 0; i < n_; ++i) ends_.push_back({i});
    for (const Life& life : lives_) ends_.push_back(life.ends);
  }

  bool check() {
    std::vector<double> apart(n_ * n_, kNever);
    for (size_t i = 0; i < n_; ++i) apart[i * n_ + i] = 0;
    for (const Dependence& d : model_.dependences) {
      double weight = model_.nodes[d.from].seconds - period_ * d.distance;
      double& at = apart[d.from * n_ + d.to];
      at = std::max(at, weight);
    }
    for (size_t k = 0; k < n_; ++k)
      for (size_t i = 0; i < n_; ++i) {
        if (apart[i * n_ + k] == kNever) continue;
        for (size_t j = 0; j < n_; ++j)
          apart[i * n_ + j] = std::max(apart[i * n_ + j], apart[i * n_ + k] + apart[k * n_ + j]);
      }
    for (size_t i = 0; i < n_; ++i)
      if (apart[i * n_ + i] > kRounding * period_) return false;
    std::vector<Pair> open;
    for (uint32_t i = 0; i < n_; ++i)
      for (uint32_t j = i + 1; j < n_; ++j)
        if (model_.nodes[i].unit == model_.nodes[j].unit && model_.nodes[i].seconds > 0 && model_.nodes[j].seconds > 0)
          open.push_back({i, i, j, j});
    const uint32_t lives = lives_.size(), first = n_;
    for (uint32_t a = 0; a < lives; ++a)
      for (uint32_t b = a + 1; b < lives; ++b)
        if (lives_[a].bytes + lives_[b].bytes > limit_)
          open.push_back({lives_[a].gather, first + a, lives_[b].gather, first + b});
    return search(apart, open);
  }

 private:
  // What begins with op i and ends with the last of a list of ops, and the same for j: one is over before the other.
  struct Pair {
    uint32_t i, endsI, j, endsJ;  // places in ends_
  };

  // The whole numbers that are possible for a pair.
  std::pair<int64_t, int64_t> choices(const std::vector<double>& apart, Pair p) const {
    double first = -1e6, last = 1e6;
    for (uint32_t u : ends_[p.endsI])
      first = std::max(first, (model_.nodes[u].seconds + apart[p.j * n_ + u]) / period_);
    for (uint32_t u : ends_[p.endsJ])
      last = std::min(last, 1 - (model_.nodes[u].seconds + apart[p.i * n_ + u]) / period_);
    if (model_.nodes[p.i].unit == Unit::kCompute) first = std::max(first, 0.0), last = std::min(last, 1.0);
    return {static_cast<int64_t>(std::ceil(first - 1e-7)), static_cast<int64_t>(std::floor(last + 1e-7))};
  }

  // False where it cannot be.
  bool add(std::vector<double>& apart, uint32_t from, uint32_t to, double weight) const {
    if (apart[from * n_ + to] >= weight) return true;
    if (weight + apart[to * n_ + from] > kRounding * period_) return false;
    for (size_t a = 0; a < n_; ++a) {
      double left = apart[a * n_ + from];
      if (left == kNever) continue;
      for (size_t b = 0; b < n_; ++b) {
        double& at = apart[a * n_ + b];
        at = std::max(at, left + weight + apart[to * n_ + b]);
      }
    }
    return true;
  }
  // All of the ends are over when the op starts, so many rounds earlier.
  bool over(std::vector<double>& apart, const std::vector<uint32_t>& ends, uint32_t op, int64_t rounds) const {
    for (uint32_t u : ends)
      if (!add(apart, u, op, model_.nodes[u].seconds - period_ * rounds)) return false;
    return true;
  }
  bool decide(std::vector<double>& apart, Pair p, int64_t k) const {
    return over(apart, ends_[p.endsI], p.j, k) && over(apart, ends_[p.endsJ], p.i, 1 - k);
  }

  // Lives, each in a round of its own, that have a moment in common and do not fit together if every op starts as early
  // as it may; empty: all fit.
  struct Instance {
    const Life* life;
    int64_t round;
  };
  std::vector<Instance> conflict(const std::vector<double>& apart) const {
    for (const Life& at : lives_) {
      std::vector<Instance> alive;
      const double moment = apart[at.gather];
      for (const Life& life : lives_) {
        double begin = apart[life.gather], end = begin;
        for (uint32_t u : life.ends) end = std::max(end, apart[u] + model_.nodes[u].seconds);
        const int64_t round = static_cast<int64_t>(std::floor((moment - begin) / period_ + 1e-7));
        if (end + period_ * round > moment + 1e-7 * period_) alive.push_back({&life, round});
      }
      std::stable_sort(alive.begin(), alive.end(),
                       [](const Instance& a, const Instance& b) { return a.life->bytes > b.life->bytes; });
      uint64_t bytes = 0;
      for (size_t i = 0; i < alive.size(); ++i)
        if ((bytes += alive[i].life->bytes) > limit_) return {alive.begin(), alive.begin() + i + 1};
    }
    return {};
  }

  // Intervals that have no moment in common have two that are apart: one of these ends before the other begins.
  bool separate(const std::vector<double>& apart) {
    ++nodes_;
    const std::vector<Instance> set = conflict(apart);
    if (set.empty()) return true;
    for (const Instance& a : set)
      for (const Instance& b : set) {
        if (a.life == b.life) continue;
        std::vector<double> tried = apart;
        if (over(tried, a.life->ends, b.life->gather, b.round - a.round) && separate(tried)) return true;
      }
    return false;
  }

  bool search(std::vector<double> apart, std::vector<Pair> open) {
    ++nodes_;
    for (bool changed = true; changed;) {
      changed = false;
      std::vector<Pair> left;
      for (Pair p : open) {
        auto [first, last] = choices(apart, p);
        if (first > last) return false;
        if (first < last) {
          left.push_back(p);
          continue;
        }
        if (!decide(apart, p, first)) return false;
        changed = true;
      }
      open.swap(left);
    }
    if (open.empty()) return separate(apart);
    // The pair with the fewest choices, and of those the longest.
    size_t best = 0;
    double bestKey = std::numeric_limits<double>::infinity();
    for (size_t x = 0; x < open.size(); ++x) {
      auto [first, last] = choices(apart, open[x]);
      double length = model_.nodes[open[x].i].seconds + model_.nodes[open[x].j].seconds;
      double key = static_cast<double>(last - first) - length / (4 * period_);
      if (key < bestKey) bestKey = key, best = x;
    }
    Pair p = open[best];
    open.erase(open.begin() + best);
    auto [first, last] = choices(apart, p);
    for (int64_t k = first; k <= last; ++k) {
      std::vector<double> tried = apart;
      if (decide(tried, p, k) && search(std::move(tried), open)) return true;
    }
    return false;
  }

  const StepModel& model_;
  const uint64_t limit_;
  std::vector<Life> lives_;
  std::vector<std::vector<uint32_t>> ends_;  // each op alone, then those of the lives
  const double period_;
  const size_t n_;
  int64_t& nodes_;
};

}  // namespace

double exactPeriod(const StepModel& model, uint64_t limit, int64_t& nodes) {
  double low = 0, high = 0;
  for (Unit unit : {Unit::kCompute, Unit::kLink}) {
    double sum = 0;
    for (const Node& node : model.nodes)
      if (node.unit == unit) sum += node.seconds;
    low = std::max(low, sum * (1 - kPrecision));
    high += sum;
  }
  // One op after the other is possible if anything is.
  high *= 1 + kRounding;
  if (!Feasibility(model, limit, high, nodes).check()) return std::numeric_limits<double>::infinity();
  while (high - low > kPrecision * high) {
    const double middle = (low + high) / 2;
    (Feasibility(model, limit, middle, nodes).check() ? high : low) = middle;
  }
  return high;
}

}  // namespace sheaf::schedule
