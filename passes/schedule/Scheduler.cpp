#include "passes/schedule/Scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include "passes/schedule/Bound.h"
#include "passes/schedule/Construct.h"

namespace sheaf::schedule {
namespace {

// Relative difference below which two times count as equal. Costs are not known better than to kSameTime; small steps
// are searched with a finer one.
constexpr double kSameTime = 1e-3, kSameTimeSearched = 1e-6;
// Steps with more nodes are large.
constexpr int64_t kLargeNodes = 2000;
// After this many orders of which none comes near the limit, none will.
constexpr int64_t kTriedBeforeHopeless = 16;
// Steps with at most so many nodes are searched, by default with so many tries.
constexpr int64_t kSearchedNodes = 64, kTries = 6000;

class Search {
 public:
  Search(const StepModel& model, const SchedulerOptions& options) : model_(model), options_(options) {
    loop_ = model.costs();
    const bool stores = std::any_of(model.nodes.begin(), model.nodes.end(),
                                    [](const Node& node) { return node.kind == Node::Kind::kStore; });
    frugal_ = stores && options.memoryLimit == 0;
    findRoom();
    findBound();
  }

  // Evaluates the order and keeps it if it is the best so far.
  bool offer(const Order& order) {
    ++tried_;
    Scheduled candidate = evaluate(order);
    if (best_ && !better(candidate, *best_)) return false;
    best_ = std::move(candidate);
    return true;
  }

  // Iterated local search over sequences of computation, each completed by the constructor: single moves as long as
  // they improve the order, then three random moves from the best one, and again.
  void reorderComputation(int64_t tries) {
    findPredecessors();
    Constructor constructor(model_);
    const double farAhead = 4 * constructor.computeSeconds() + constructor.gatherSeconds();
    auto decode = [&](const std::vector<uint32_t>& sequence) {
      Constructor fixed(model_, sequence);
      std::optional<Scheduled> found;
      auto attempt = [&](double lead, uint64_t room) {
        Scheduled scheduled = evaluate(fixed.construct({.gatherLead = lead, .maxGatheredBytes = room}));
        if (!found || better(scheduled, *found)) found = std::move(scheduled);
        --tries;
      };
      attempt(farAhead, room_);
      attempt(constructor.longestGather(), room_);
      if (room_ > 0) attempt(constructor.longestGather(), 0);
      return std::move(*found);
    };
    Scheduled home = decode(sequenceOf(best_->order));
    std::mt19937_64 random(1);
    while (tries > 0 && !done()) {
      for (bool improved = true; improved && tries > 0 && !done(home);) {
        improved = false;
        std::vector<uint32_t> sequence = sequenceOf(home.order);
        const size_t n = sequence.size();
        for (size_t from = 0; from < n && tries > 0; ++from)
          for (size_t to = 0; to < n && tries > 0; ++to) {
            std::vector<uint32_t> moved = sequence;
            if (!shift(moved, from, to)) continue;
            Scheduled tried = decode(moved);
            if (!better(tried, home)) continue;
            home = std::move(tried);
            sequence = sequenceOf(home.order);
            improved = true;
          }
      }
      if (better(home, *best_)) best_ = home;
      std::vector<uint32_t> kicked = sequenceOf(best_->order);
      for (int kick = 0, attempts = 0; kick < 3 && attempts < 100; ++attempts)
        kick += shift(kicked, random() % kicked.size(), random() % kicked.size());
      home = decode(kicked);
    }
  }

  // Local search over whole orders: single moves as long as they improve the order.
  void improve(int64_t tries) {
    const int64_t n = model_.nodes.size();
    for (bool improved = true; improved && tries > 0 && !done();) {
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

  // The best order is within the limit and reaches the lower bound.
  bool done() const { return done(*best_); }

  // Bytes that the limit leaves for gathered parameters, at least 1; 0: there is no limit.
  uint64_t room() const { return room_; }

  // Orders differ only in gathered parameters and pending gradients, so that one far above the limit means that none is
  // within it.
  bool hopeless() const {
    return options_.memoryLimit > 0 && tried_ > kTriedBeforeHopeless &&
           best_->bytes > options_.memoryLimit + options_.memoryLimit / 8;
  }

  Scheduled take() { return std::move(*best_); }

 private:
  Scheduled evaluate(Order order) const {
    Timeline timeline = play(loopOf(model_, order));
    uint64_t bytes = liveBytes(model_, order);
    return {std::move(order), std::move(timeline), bytes};
  }

  // By what is alive besides in the given order.
  void findRoom() {
    if (options_.memoryLimit == 0) return;
    StepModel others = model_;
    for (const Node& node : model_.nodes)
      for (const Access& access : node.accesses)
        if (node.kind == Node::Kind::kGather && access.write) others.buffers[access.buffer].bytes = 0;
    uint64_t kept = std::min(options_.memoryLimit, liveBytes(others, orderOf(others)));
    room_ = std::max<uint64_t>(options_.memoryLimit - kept, 1);
  }

  // The full bound for small steps, whose search it ends; for others the sums of computation and transfers.
  void findBound() {
    double compute = 0, onNodeLink = 0, onNetwork = 0, units[kUnits] = {};
    for (const Op& op : loop_.ops) {
      units[size_t(op.unit)] += op.seconds;
      if (op.unit == Unit::kCompute) compute += op.seconds;
      if (usesNodeLink(op.unit)) onNodeLink += op.seconds;
      if (usesNetwork(op.unit)) onNetwork += op.seconds;
    }
    bound_ = std::max({compute + loop_.lostTo(onNodeLink, onNetwork), onNodeLink, onNetwork});
    for (Unit unit : {Unit::kToDevice, Unit::kToHost, Unit::kFileIn, Unit::kFileOut, Unit::kHostCompute})
      bound_ = std::max(bound_, units[size_t(unit)]);
    if (int64_t(model_.nodes.size()) > kSearchedNodes) return;
    const bool limited = options_.memoryLimit > 0;
    const MemoryBound memory =
        limited ? memoryBoundOf(model_, model_.dependences, options_.memoryLimit) : MemoryBound{};
    bound_ = boundOf(loop_, model_.dependences, limited ? &memory : nullptr).seconds;
  }

  bool done(const Scheduled& scheduled) const {
    if (frugal_) return false;
    bool fits = options_.memoryLimit == 0 || scheduled.bytes <= options_.memoryLimit;
    return fits && scheduled.timeline.period <= bound_ * (1 + same());
  }

  std::vector<uint32_t> sequenceOf(const Order& order) const {
    std::vector<uint32_t> sequence;
    for (uint32_t node : order.nodes)
      if (model_.nodes[node].stream == 0) sequence.push_back(node);
    return sequence;
  }

  // The transitive closure of the dependences within a round.
  void findPredecessors() {
    const size_t n = model_.nodes.size();
    before_.assign(n, std::vector<bool>(n));
    for (const Dependence& d : model_.dependences) {  // sorted by what waits
      if (d.distance > 0) continue;
      before_[d.to][d.from] = true;
      for (size_t i = 0; i < n; ++i)
        if (before_[d.from][i]) before_[d.to][i] = true;
    }
  }

  // Moves an element of the sequence; false if a dependence forbids it.
  bool shift(std::vector<uint32_t>& sequence, size_t from, size_t to) const {
    if (from == to) return false;
    for (size_t i = std::min(from, to); i <= std::max(from, to); ++i) {
      if (i == from) continue;
      uint32_t a = sequence[from], b = sequence[i];
      if (to < from ? before_[a][b] : before_[b][a]) return false;
    }
    uint32_t node = sequence[from];
    sequence.erase(sequence.begin() + from);
    sequence.insert(sequence.begin() + to, node);
    return true;
  }

  double same() const { return int64_t(model_.nodes.size()) <= kSearchedNodes ? kSameTimeSearched : kSameTime; }

  bool better(const Scheduled& a, const Scheduled& b) const {
    uint64_t limit = options_.memoryLimit ? options_.memoryLimit : std::numeric_limits<uint64_t>::max();
    bool fitsA = a.bytes <= limit, fitsB = b.bytes <= limit;
    if (fitsA != fitsB) return fitsA;
    if (!fitsA && a.bytes != b.bytes) return a.bytes < b.bytes;
    double x = a.timeline.period, y = b.timeline.period;
    // Who moves buffers off the device has few bytes there, and has not said how many.
    if (frugal_) return x * double(a.bytes) < y * double(b.bytes);
    if (x < y * (1 - same())) return true;
    return x <= y * (1 + same()) && a.bytes < b.bytes;
  }

  // Moves the node at place `from` to place `to`. A gather that is moved beyond the begin becomes the last one, carried
  // into the next round; one that is moved beyond the end returns to the begin.
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
  int64_t tried_ = 0;
  Loop loop_;  // without dependences
  uint64_t room_ = 0;
  double bound_ = 0;
  bool frugal_ = false;  // the product of seconds and bytes decides
  std::vector<std::vector<bool>> before_;
};

}  // namespace

Scheduled schedule(const StepModel& model, const SchedulerOptions& options) {
  Constructor constructor(model);
  Search search(model, options);
  search.offer(orderOf(model));
  double whole = constructor.computeSeconds(), gather = constructor.longestGather();
  if (options.prefetch >= 0) {
    for (bool eager : {true, false})
      search.offer(constructor.construct({.eagerUpdates = eager, .maxGathersAhead = options.prefetch}));
    return search.take();
  }
  // From options that keep few bytes alive to those that hide more, until the bound is reached. Every second one for
  // large steps, whose step boundary matters less.
  const double far = 4 * whole + constructor.gatherSeconds();
  const bool large = int64_t(model.nodes.size()) > kLargeNodes;
  int64_t count = 0;
  auto tryOptions = [&](const ConstructionOptions& construction) {
    if ((large && count++ % 2 == 1) || search.done() || search.hopeless()) return;
    search.offer(constructor.construct(construction));
  };
  for (double tail : {0.0, 0.03, 0.1, 0.3, 2.0})
    for (bool eager : {true, false})
      for (double lead : {0.0, gather, 2 * gather, 3 * gather, 5 * gather, 0.25 * whole + gather, far})
        tryOptions({.gatherLead = lead, .tailSeconds = tail * whole, .eagerUpdates = eager});
  // Where the link is slower than computation, every gather is late, and a bound on the gathers ahead limits memory.
  for (double tail : {0.0, 0.1, 0.3})
    for (int64_t pending : {0, 1, 2, 4, 8, -1})
      for (int64_t prefetch : {1, 2, 4, 8})
        tryOptions({.tailSeconds = tail * whole, .maxPendingReductions = pending, .maxGathersAhead = prefetch});
  // More tails, for steps whose boundary is exposed.
  for (double tail : {0.05, 0.15, 0.2, 0.25, 0.4, 0.5, 0.6, 0.8})
    for (bool eager : {true, false})
      for (double lead : {gather, far})
        tryOptions({.gatherLead = lead, .tailSeconds = tail * whole, .eagerUpdates = eager});
  // Under a limit, gathers as early as gathered bytes leave room.
  if (search.room() > 0)
    for (double tail : {0.0, 0.1, 0.3, 2.0})
      for (bool eager : {true, false})
        for (double lead : {gather, far})
          tryOptions({.gatherLead = lead,
                      .tailSeconds = tail * whole,
                      .eagerUpdates = eager,
                      .maxGatheredBytes = search.room()});
  if (int64_t(model.nodes.size()) <= kSearchedNodes) {
    int64_t tries = options.searches >= 0 ? options.searches : kTries;
    search.reorderComputation(tries);
    search.improve(tries);
  }
  return search.take();
}

}  // namespace sheaf::schedule
