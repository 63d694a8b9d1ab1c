#include "runtime/schedule/Scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/schedule/Construct.h"

namespace sheaf::schedule {
namespace {

// Times that differ by less than this part of them are the same.
constexpr double kSameTime = 1e-6;
// Nodes that local search plays altogether: a second's work.
constexpr int64_t kSearchedNodes = 1 << 21;

class Search {
 public:
  Search(const StepModel& model, const SchedulerOptions& options) : model_(model), options_(options) {}

  // Takes the order if it is better than the best so far.
  bool offer(const Order& order) {
    Scheduled candidate{order, play(loopOf(model_, order)), liveBytes(model_, order)};
    if (best_ && !better(candidate, *best_)) return false;
    best_ = std::move(candidate);
    return true;
  }

  // Moves single nodes to other places as long as that helps.
  void improve(int64_t tries) {
    const int64_t n = model_.nodes.size();
    for (bool improved = true; improved && tries > 0;) {
      improved = false;
      for (int64_t from = 0; from < n && tries > 0; ++from)
        for (int64_t to = -1; to <= n && tries > 0; ++to) {
          std::optional<Order> moved = move(best_->order, from, to);
          if (!moved || !respects(model_, *moved)) continue;
          --tries;
          if (offer(*moved)) improved = true;
        }
    }
  }

  Scheduled take() { return std::move(*best_); }

 private:
  bool better(const Scheduled& a, const Scheduled& b) const {
    uint64_t limit = options_.memoryLimit ? options_.memoryLimit : std::numeric_limits<uint64_t>::max();
    bool fitsA = a.bytes <= limit, fitsB = b.bytes <= limit;
    if (fitsA != fitsB) return fitsA;
    if (!fitsA && a.bytes != b.bytes) return a.bytes < b.bytes;
    double x = a.timeline.period, y = b.timeline.period;
    if (x < y * (1 - kSameTime)) return true;
    return x <= y * (1 + kSameTime) && a.bytes < b.bytes;
  }

  // The node at place `from` goes to place `to`; a gather that goes beyond an end goes to the other one, into the next
  // round or back from it.
  std::optional<Order> move(const Order& order, int64_t from, int64_t to) const {
    const int64_t n = order.nodes.size();
    uint32_t node = order.nodes[from];
    if (to == from) return std::nullopt;
    Order moved = order;
    if (to < 0 || to == n) {
      if (model_.nodes[node].kind != Node::Kind::kGather || order.carried[node] == (to < 0)) return std::nullopt;
      moved.carried[node] = to < 0;
      to = to < 0 ? n - 1 : 0;
    }
    moved.nodes.erase(moved.nodes.begin() + from);
    moved.nodes.insert(moved.nodes.begin() + to, node);
    return moved;
  }

  const StepModel& model_;
  const SchedulerOptions& options_;
  std::optional<Scheduled> best_;
};

}  // namespace

Scheduled schedule(const StepModel& model, const SchedulerOptions& options) {
  Constructor constructor(model);
  Search search(model, options);
  search.offer(orderOf(model));
  double whole = constructor.computeSeconds(), gather = constructor.longestGather();
  std::vector<Shape> shapes;
  for (bool eager : {true, false})
    for (double window : {0.0, 0.03 * whole, 0.1 * whole, 0.3 * whole, 2 * whole}) {
      if (options.prefetch >= 0)
        shapes.push_back({0, window, eager, options.prefetch});
      else
        for (double horizon : {0.0, gather, 3 * gather, 0.25 * whole + gather, 4 * whole + constructor.gatherSeconds()})
          shapes.push_back({horizon, window, eager, -1});
    }
  for (const Shape& shape : shapes) search.offer(constructor.construct(shape));
  int64_t n = std::max<int64_t>(model.nodes.size(), 1);
  search.improve(options.searches >= 0 ? options.searches : kSearchedNodes / n);
  return search.take();
}

}  // namespace sheaf::schedule
