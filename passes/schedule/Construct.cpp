#include "passes/schedule/Construct.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <set>

namespace sheaf::schedule {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Rounds that are simulated, and the one whose order is taken: what comes before it brings the steady state about.
constexpr int64_t kRounds = 4, kTaken = 2;

// A collective is brief if it takes less than this part of the longest one.
constexpr double kBrief = 0.02;

bool onCompute(const Node& node) {
  return node.stream == 0;
}

}  // namespace

Constructor::Constructor(const StepModel& model, std::vector<uint32_t> sequence)
    : model_(model), sequence_(std::move(sequence)) {
  const size_t n = model.nodes.size();
  waits_.resize(n), releases_.resize(n);
  for (const Dependence& d : model.dependences) waits_[d.to].push_back(d), releases_[d.from].push_back(d);

  findUsers();
  carriable_.assign(n, false);
  ideal_.assign(n, 0);
  int64_t reductions = 0;
  for (const Node& node : model.nodes) {
    reductionsBefore_.push_back(reductions);
    reductions += node.kind == Node::Kind::kReduce;
  }
  for (uint32_t i : sequence_) ideal_[i] = computeSeconds_, computeSeconds_ += model.nodes[i].seconds;
  for (size_t i = 0; i < n; ++i) {
    const Node& node = model.nodes[i];
    if (sequence_.empty()) {
      ideal_[i] = computeSeconds_;
      if (isFixed(node)) computeSeconds_ += node.seconds;
    }
    if (node.kind != Node::Kind::kGather) continue;
    carriable_[i] = std::all_of(waits_[i].begin(), waits_[i].end(), [](const Dependence& d) { return d.distance > 0; });
    longestGather_ = std::max(longestGather_, node.seconds);
    gatherSeconds_ += node.seconds;
  }

  // Both unrolled over two rounds, the second first.
  tail_.assign(n, 0);
  latest_.assign(n, kInfinity);
  std::vector<double> nextTail, nextLatest;
  for (int round = 1; round >= 0; --round) {
    nextTail.swap(tail_), nextLatest.swap(latest_);
    tail_.assign(n, 0), latest_.assign(n, kInfinity);
    for (size_t i = n; i-- > 0;) {
      // A body ends with its own computation.
      if (onCompute(model.nodes[i])) latest_[i] = computeSeconds_;
      for (const Dependence& d : releases_[i]) {
        bool next = d.distance > 0;
        if (next && round == 1) continue;
        const Node& to = model.nodes[d.to];
        tail_[i] = std::max(tail_[i], next ? nextTail[d.to] : tail_[d.to]);
        double needed = isFixed(to) ? ideal_[d.to] : next ? nextLatest[d.to] : latest_[d.to];
        latest_[i] = std::min(latest_[i], needed + (next ? computeSeconds_ : 0));
      }
      tail_[i] += model.nodes[i].seconds;
      latest_[i] -= model.nodes[i].seconds;
    }
  }
  // What takes no time worth waiting for goes first: everything may be late already, and somebody waits for it.
  double longest = 0, linkSeconds = 0;
  for (const Node& node : model.nodes)
    if (node.unit == Unit::kLink) longest = std::max(longest, node.seconds), linkSeconds += node.seconds;
  for (size_t i = 0; i < n; ++i)
    if (model.nodes[i].kind == Node::Kind::kOther && model.nodes[i].seconds < kBrief * longest) latest_[i] = -kInfinity;
  std::vector<double> firstUse = latest_;  // when computation first needs a collective, from the round's start
  for (uint32_t i = 0; i < n; ++i) {
    firstUse[i] += model.nodes[i].seconds;
    if (model.nodes[i].kind == Node::Kind::kGather) gathers_.push_back(i);
  }
  std::stable_sort(gathers_.begin(), gathers_.end(), [&](uint32_t a, uint32_t b) { return firstUse[a] < firstUse[b]; });
  turn_.assign(n, 0);
  for (uint32_t gather : gathers_) turn_[gather] = firstUses_.size(), firstUses_.push_back(firstUse[gather]);
  // Gathers follow each other on the link, around the loop: earliest deadline first, backwards.
  for (int pass = 0; pass < 2 && !gathers_.empty(); ++pass) {
    double next = latest_[gathers_.front()] + std::max(computeSeconds_, linkSeconds);
    for (size_t k = gathers_.size(); k-- > 0;) {
      double& latest = latest_[gathers_[k]];
      next = latest = std::min(latest, next - model.nodes[gathers_[k]].seconds);
    }
  }
}

void Constructor::findUsers() {
  const size_t n = model_.nodes.size();
  bytes_.assign(n, 0), users_.assign(n, 0), brings_.resize(n);
  std::vector<uint32_t> writer(model_.buffers.size(), kNone);
  for (uint32_t i = 0; i < n; ++i) {
    for (const Access& access : model_.nodes[i].accesses) {
      uint32_t gather = writer[access.buffer];
      bool again = !brings_[i].empty() && brings_[i].back() == gather;
      if (gather != kNone && !again) brings_[i].push_back(gather), ++users_[gather];
    }
    if (model_.nodes[i].kind != Node::Kind::kGather) continue;
    for (const Access& access : model_.nodes[i].accesses)
      if (access.write && !model_.buffers[access.buffer].persistent)
        writer[access.buffer] = i, bytes_[i] += model_.buffers[access.buffer].bytes;
  }
}

// Plays the step as instances of nodes: node `i` of round `r`.
class Simulation {
 public:
  Simulation(const Constructor& c, const Shape& shape)
      : c_(c), model_(c.model_), shape_(shape), n_(model_.nodes.size()) {
    missing_.resize(kRounds * n_);
    for (int64_t round = 0; round < kRounds; ++round) users_.insert(users_.end(), c.users_.begin(), c.users_.end());
    begin_.assign(kRounds * n_, kInfinity);
    end_.assign(kRounds * n_, kInfinity);
    byLatest_ = [this](uint32_t a, uint32_t b) {
      double x = deadline(a), y = deadline(b);
      return x != y ? x < y : a < b;
    };
    byTail_ = [this](uint32_t a, uint32_t b) {
      double x = c_.tail_[a % n_], y = c_.tail_[b % n_];
      return x != y ? x > y : a < b;
    };
    // Gathers keep the order of their first uses.
    byTurn_ = [this](uint32_t a, uint32_t b) {
      return std::pair(roundOf(a), c_.turn_[a % n_]) < std::pair(roundOf(b), c_.turn_[b % n_]);
    };
    readyGathers_ = Ready(byTurn_), readyOthers_ = Ready(byLatest_);
    readyAftermath_ = Ready(byTail_), readyWindow_ = Ready(byTail_);
    double windowStart = c.computeSeconds_ - shape.window;
    inWindow_.assign(n_, false);
    mainline_ = c.sequence_;
    for (uint32_t i = 0; i < n_ && c.sequence_.empty(); ++i)
      if (c.isFixed(model_.nodes[i])) {
        inWindow_[i] = c.ideal_[i] + model_.nodes[i].seconds > windowStart && shape.window > 0;
        if (!inWindow_[i]) mainline_.push_back(i), windowStart_ += model_.nodes[i].seconds;
      }
    for (uint32_t i = 0; i < n_; ++i) computeNodes_ += onCompute(model_.nodes[i]);
    for (int64_t round = 0; round < kRounds; ++round)
      for (uint32_t i = 0; i < n_; ++i) {
        uint32_t id = round * n_ + i;
        for (const Dependence& d : c.waits_[i]) missing_[id] += d.distance <= round;
        if (missing_[id] == 0) arrive(id);
      }
  }

  // Until the rounds that matter are over.
  void run() {
    while (round_ <= kTaken + 1) {
      startLink();
      startCompute();
      double next = std::min(computeEnd_, linkEnd_);
      if (linkEnd_ == kInfinity && !readyGathers_.empty() && gatherAllowed(*readyGathers_.begin()))
        next = std::min(next, std::max(time_, release(*readyGathers_.begin())));
      if (next == kInfinity) break;  // everything is done
      time_ = std::max(time_, next);
      if (computeEnd_ <= time_) computeEnd_ = kInfinity, finish(computing_);
      if (linkEnd_ <= time_) linkEnd_ = kInfinity, finish(moving_);
    }
  }

  Order order() const;

 private:
  using Compare = std::function<bool(uint32_t, uint32_t)>;
  using Ready = std::set<uint32_t, Compare>;

  int64_t roundOf(uint32_t id) const { return id / n_; }
  const Node& nodeOf(uint32_t id) const { return model_.nodes[id % n_]; }
  double deadline(uint32_t id) const { return c_.latest_[id % n_] + roundOf(id) * c_.computeSeconds_; }
  // How far computation is behind its ideal: by so much later everything is needed.
  double lag() const {
    double ideal = next_ < mainline_.size() ? c_.ideal_[mainline_[next_]] : windowStart_ + windowDone_;
    return std::max(0.0, time_ - (ideal + round_ * c_.computeSeconds_));
  }
  double release(uint32_t id) const { return shape_.prefetch >= 0 ? time_ : deadline(id) + lag() - shape_.horizon; }
  // Nothing of the round after the next one; and of the next one only what may be carried.
  bool gatherAllowed(uint32_t id) const {
    int64_t ahead = roundOf(id) - round_;
    if (ahead > 1 || (ahead == 1 && !c_.carriable_[id % n_])) return false;
    if (shape_.gatheredBytes > 0 && gathered_ + c_.bytes_[id % n_] > shape_.gatheredBytes) return false;
    if (shape_.prefetch < 0) return true;
    // Gathers whose first use has begun, and those that may be under way besides.
    const bool busy = computeEnd_ < kInfinity;
    const int64_t count = c_.gathers_.size(), round = busy ? roundOf(computing_) : round_;
    double reached = busy                       ? c_.ideal_[computing_ % n_]
                     : next_ < mainline_.size() ? c_.ideal_[mainline_[next_]]
                                                : c_.computeSeconds_;
    const auto first = c_.firstUses_.begin();
    const int64_t used = round * count + (std::upper_bound(first, c_.firstUses_.end(), reached) - first);
    return c_.turn_[id % n_] + roundOf(id) * count < used + shape_.prefetch;
  }

  void arrive(uint32_t id) {
    const Node& node = nodeOf(id);
    if (node.kind == Node::Kind::kGather)
      readyGathers_.insert(id);
    else if (!onCompute(node))
      readyOthers_.insert(id);
    else if (!c_.sequence_.empty())
      return;
    else if (node.kind == Node::Kind::kAftermath)
      readyAftermath_.insert(id);
    else if (inWindow_[id % n_])
      readyWindow_.insert(id);
  }

  void finish(uint32_t id) {
    end_[id] = time_;
    if (nodeOf(id).kind == Node::Kind::kReduce) ++reduced_[roundOf(id)];
    for (uint32_t gather : c_.brings_[id % n_])
      if (--users_[roundOf(id) * n_ + gather] == 0) gathered_ -= c_.bytes_[gather];
    for (const Dependence& d : c_.releases_[id % n_]) {
      int64_t round = roundOf(id) + d.distance;
      if (round < kRounds && --missing_[round * n_ + d.to] == 0) arrive(round * n_ + d.to);
    }
  }

  void startLink() {
    while (linkEnd_ == kInfinity) {
      uint32_t gather = kNone, other = kNone;
      if (!readyGathers_.empty() && gatherAllowed(*readyGathers_.begin())) gather = *readyGathers_.begin();
      if (!readyOthers_.empty() && roundOf(*readyOthers_.begin()) <= round_) other = *readyOthers_.begin();
      uint32_t chosen = other;
      if (gather != kNone && release(gather) <= time_) {
        // A reduction goes first where the gather can wait for it: it frees gradients.
        bool urgent = other != kNone && deadline(gather) + lag() < time_ + nodeOf(other).seconds;
        if (other == kNone || urgent) chosen = gather;
      }
      if (chosen == kNone) return;
      (chosen == gather ? readyGathers_ : readyOthers_).erase(chosen);
      moving_ = chosen;
      if (c_.users_[chosen % n_] > 0) gathered_ += c_.bytes_[chosen % n_];
      begin_[chosen] = time_;
      linkEnd_ = time_ + nodeOf(chosen).seconds;
      if (nodeOf(chosen).seconds == 0) linkEnd_ = kInfinity, finish(chosen);
    }
  }

  uint32_t pick() {
    // As soon as its reduction is done: that frees a gradient.
    if (uint32_t aftermath = firstOfRound(readyAftermath_); aftermath != kNone) return aftermath;
    if (next_ < mainline_.size()) {
      uint32_t id = round_ * n_ + mainline_[next_];
      bool waits = shape_.pending >= 0 && c_.reductionsBefore_[id % n_] > reduced_[round_] + shape_.pending;
      return missing_[id] == 0 && !waits ? id : kNone;
    }
    return firstOfRound(readyWindow_);
  }

  uint32_t firstOfRound(const Ready& ready) const {
    for (uint32_t id : ready)
      if (roundOf(id) == round_) return id;
    return kNone;
  }

  void startCompute() {
    while (computeEnd_ == kInfinity && round_ < kRounds) {
      uint32_t id = pick();
      if (id == kNone) return;
      readyAftermath_.erase(id), readyWindow_.erase(id);
      if (next_ < mainline_.size() && id % n_ == mainline_[next_]) ++next_;
      if (inWindow_[id % n_]) windowDone_ += nodeOf(id).seconds;
      begin_[id] = time_;
      issued_.push_back(id);
      computing_ = id;
      computeEnd_ = time_ + nodeOf(id).seconds;
      if (++computed_ == computeNodes_) computed_ = 0, next_ = 0, windowDone_ = 0, ++round_;
      if (nodeOf(id).seconds == 0) computeEnd_ = kInfinity, finish(id);
    }
  }

  const Constructor& c_;
  const StepModel& model_;
  const Shape shape_;
  const uint32_t n_;
  Compare byLatest_, byTurn_, byTail_;
  Ready readyGathers_, readyOthers_, readyAftermath_, readyWindow_;
  std::vector<uint32_t> missing_, users_;
  uint64_t gathered_ = 0;  // bytes that gathers bring or have brought and that are still to be used
  std::vector<double> begin_, end_;
  std::vector<bool> inWindow_;
  std::vector<uint32_t> mainline_, issued_;
  uint32_t computeNodes_ = 0, computed_ = 0;
  size_t next_ = 0;                                               // into mainline_
  double windowStart_ = 0;                                        // seconds of the computation before the window
  double windowDone_ = 0;                                         // seconds of the window that are issued
  int64_t round_ = 0;                                             // that computation is in
  std::vector<int64_t> reduced_ = std::vector<int64_t>(kRounds);  // reductions done, by round
  double time_ = 0, computeEnd_ = kInfinity, linkEnd_ = kInfinity;
  uint32_t computing_ = kNone, moving_ = kNone;
};

Order Simulation::order() const {
  Order order;
  order.carried.assign(n_, false);
  // Each node's wish: the time it began, as seen from the start of its body; a carried one's lies at the body's end.
  double starts[kRounds];
  std::fill(std::begin(starts), std::end(starts), kInfinity);
  for (uint32_t id : issued_) starts[roundOf(id)] = std::min(starts[roundOf(id)], begin_[id]);
  double start = starts[kTaken], length = starts[kTaken + 1] - start;
  std::vector<double> wish(n_);
  for (uint32_t i = 0; i < n_; ++i) {
    double begin = begin_[kTaken * n_ + i];
    order.carried[i] = c_.carriable_[i] && begin < start;
    wish[i] = order.carried[i] ? begin - start + length : begin - start;
  }
  // Collectives stand behind the computation that was over when they began.
  for (uint32_t i = 0; i < n_; ++i)
    if (onCompute(model_.nodes[i])) wish[i] = end_[kTaken * n_ + i] - start;
  // Legal whatever was wished: dependences first, then the wishes.
  std::vector<uint32_t> missing(n_, 0);
  auto within = [&](const Dependence& d) {
    return int64_t(d.distance) + order.carried[d.from] - order.carried[d.to] == 0;
  };
  for (const Dependence& d : model_.dependences) missing[d.to] += within(d);
  using Entry = std::tuple<double, bool, uint32_t>;  // computation first
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  auto add = [&](uint32_t i) { ready.emplace(wish[i], !onCompute(model_.nodes[i]), i); };
  for (uint32_t i = 0; i < n_; ++i)
    if (missing[i] == 0) add(i);
  while (!ready.empty()) {
    uint32_t i = std::get<2>(ready.top());
    ready.pop();
    order.nodes.push_back(i);
    for (const Dependence& d : c_.releases_[i])
      if (within(d) && --missing[d.to] == 0) add(d.to);
  }
  return order;
}

Order Constructor::construct(const Shape& shape) const {
  Simulation simulation(*this, shape);
  simulation.run();
  return simulation.order();
}

}  // namespace sheaf::schedule
