#include "test/runtime/ExactSchedule.h"

#include <cmath>
#include <limits>
#include <vector>

namespace sheaf::schedule {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kPrecision = 1e-4, kRounding = 1e-9;

// Whether a period is possible: start times s with s_j - s_i >= apart[i][j], and for two ops of one unit some whole
// number k with s_j >= s_i + p_i - T k and s_i >= s_j + p_j - T (1 - k).
class Feasibility {
 public:
  Feasibility(const StepModel& model, double period, int64_t& nodes)
      : model_(model), period_(period), n_(model.nodes.size()), nodes_(nodes) {}

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
          open.push_back({i, j});
    return search(apart, open);
  }

 private:
  struct Pair {
    uint32_t i, j;
  };

  // The whole numbers that are possible for a pair.
  std::pair<int64_t, int64_t> choices(const std::vector<double>& apart, Pair p) const {
    double low = apart[p.i * n_ + p.j], high = -apart[p.j * n_ + p.i];
    double pi = model_.nodes[p.i].seconds, pj = model_.nodes[p.j].seconds;
    double first = (pi - high) / period_, last = (period_ - pj - low) / period_;
    bool compute = model_.nodes[p.i].unit == Unit::kCompute;  // within a body one comes before the other
    if (compute || first < -1e6) first = std::max(first, compute ? 0.0 : -1e6);
    if (compute || last > 1e6) last = std::min(last, compute ? 1.0 : 1e6);
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
  bool decide(std::vector<double>& apart, Pair p, int64_t k) const {
    return add(apart, p.i, p.j, model_.nodes[p.i].seconds - period_ * k) &&
           add(apart, p.j, p.i, model_.nodes[p.j].seconds - period_ * (1 - k));
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
    if (open.empty()) return true;
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
  const double period_;
  const size_t n_;
  int64_t& nodes_;
};

}  // namespace

double exactPeriod(const StepModel& model, double known, int64_t& nodes) {
  if (!Feasibility(model, known * (1 - kPrecision), nodes).check()) return known;
  double low = 0, high = known;
  for (Unit unit : {Unit::kCompute, Unit::kLink}) {
    double sum = 0;
    for (const Node& node : model.nodes)
      if (node.unit == unit) sum += node.seconds;
    low = std::max(low, sum * (1 - kPrecision));
  }
  while (high - low > kPrecision * high) {
    double middle = (low + high) / 2;
    (Feasibility(model, middle, nodes).check() ? high : low) = middle;
  }
  return high;
}

}  // namespace sheaf::schedule
