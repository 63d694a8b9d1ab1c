#include "passes/schedule/Construct.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <set>

namespace sheaf::schedule {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Rounds that are simulated, and the one whose order is taken: the earlier ones lead to the steady state.
constexpr int64_t kRounds = 4, kTakenRound = 2;

// A collective is brief if it takes less than this part of the longest one.
constexpr double kBrief = 0.02;

bool onCompute(const Node& node) {
  return node.stream == 0;
}

}  // namespace

Constructor::Constructor(const StepModel& model, std::vector<uint32_t> sequence)
    : model_(model), sequence_(std::move(sequence)) {
  const size_t n = model.nodes.size();
  predecessors_.resize(n), successors_.resize(n);
  for (const Node& node : model.nodes) streams_ = std::max(streams_, node.stream + 1);
  for (const Dependence& d : model.dependences) predecessors_[d.to].push_back(d), successors_[d.from].push_back(d);
  findUsers();
  findIdealStarts();
  findPaths();
  findLatestStarts();
}

// Also what the gathers take, and which of them may be issued by the body before.
void Constructor::findIdealStarts() {
  const size_t n = model_.nodes.size();
  carriable_.assign(n, false);
  idealStart_.assign(n, 0);
  int64_t reductions = 0;
  for (const Node& node : model_.nodes) {
    reductionsBefore_.push_back(reductions);
    reductions += node.kind == Node::Kind::kReduce;
  }
  for (uint32_t i : sequence_) idealStart_[i] = computeSeconds_, computeSeconds_ += model_.nodes[i].seconds;
  for (size_t i = 0; i < n; ++i) {
    const Node& node = model_.nodes[i];
    if (sequence_.empty()) {
      idealStart_[i] = computeSeconds_;
      if (isFixed(node)) computeSeconds_ += node.seconds;
    }
    if (node.kind != Node::Kind::kGather) continue;
    // The second hop of a gather, which reads the result of the first one, may be if that may be.
    auto first = [&](uint32_t from) {
      const std::vector<uint32_t>& used = usedGathers_[i];
      return carriable_[from] && std::find(used.begin(), used.end(), from) != used.end();
    };
    carriable_[i] = std::all_of(predecessors_[i].begin(), predecessors_[i].end(),
                                [&](const Dependence& d) { return d.distance > 0 || first(d.from); });
    longestGather_ = std::max(longestGather_, node.seconds);
    gatherSeconds_ += node.seconds;
  }
}

// Remaining paths and latest starts by the dependences alone, unrolled over two rounds, the second first.
void Constructor::findPaths() {
  const size_t n = model_.nodes.size();
  remainingPath_.assign(n, 0);
  latestStart_.assign(n, kInfinity);
  std::vector<double> nextPath, nextLatest;
  for (int round = 1; round >= 0; --round) {
    nextPath.swap(remainingPath_), nextLatest.swap(latestStart_);
    remainingPath_.assign(n, 0), latestStart_.assign(n, kInfinity), needed_.assign(n, kInfinity);
    for (size_t i = n; i-- > 0;) {
      // All computation of a round ends before the next round begins.
      if (onCompute(model_.nodes[i])) latestStart_[i] = computeSeconds_;
      for (const Dependence& d : successors_[i]) {
        bool next = d.distance > 0;
        if (next && round == 1) continue;
        const Node& to = model_.nodes[d.to];
        remainingPath_[i] = std::max(remainingPath_[i], next ? nextPath[d.to] : remainingPath_[d.to]);
        double needed = isFixed(to) ? idealStart_[d.to] : next ? nextLatest[d.to] : latestStart_[d.to];
        latestStart_[i] = std::min(latestStart_[i], needed + (next ? computeSeconds_ : 0));
      }
      remainingPath_[i] += model_.nodes[i].seconds;
      needed_[i] = latestStart_[i];
      latestStart_[i] -= model_.nodes[i].seconds;
    }
  }
}

// Also by the gathers after it on its stream.
void Constructor::findLatestStarts() {
  const size_t n = model_.nodes.size();
  double longest = 0;
  std::vector<double> linkSeconds(streams_, 0);
  for (const Node& node : model_.nodes)
    if (isLink(node.unit)) longest = std::max(longest, node.seconds), linkSeconds[node.stream] += node.seconds;
  // Brief collectives always go first: they delay the others little, and some computation waits for them.
  for (size_t i = 0; i < n; ++i)
    if (model_.nodes[i].kind == Node::Kind::kOther && model_.nodes[i].seconds < kBrief * longest)
      latestStart_[i] = -kInfinity;
  for (uint32_t i = 0; i < n; ++i)
    if (model_.nodes[i].kind == Node::Kind::kGather) gathers_.push_back(i);
  std::stable_sort(gathers_.begin(), gathers_.end(), [&](uint32_t a, uint32_t b) { return needed_[a] < needed_[b]; });
  gatherIndex_.assign(n, 0);
  for (uint32_t gather : gathers_) gatherIndex_[gather] = firstUses_.size(), firstUses_.push_back(needed_[gather]);
  // Earliest deadline first, backwards from the last gather of each stream and once around the loop. A gather in two
  // hops is needed by its second one.
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<double> next(streams_, kInfinity);
    for (uint32_t gather : gathers_) {
      const uint32_t stream = model_.nodes[gather].stream;
      if (next[stream] == kInfinity)
        next[stream] = latestStart_[gather] + std::max(computeSeconds_, linkSeconds[stream]);
    }
    for (size_t k = gathers_.size(); k-- > 0;) {
      const uint32_t gather = gathers_[k], stream = model_.nodes[gather].stream;
      double& latest = latestStart_[gather];
      for (const Dependence& d : successors_[gather])
        if (d.distance == 0 && model_.nodes[d.to].kind == Node::Kind::kGather)
          latest = std::min(latest, latestStart_[d.to] - model_.nodes[gather].seconds);
      next[stream] = latest = std::min(latest, next[stream] - model_.nodes[gather].seconds);
    }
  }
}

void Constructor::findUsers() {
  const size_t n = model_.nodes.size();
  gatheredBytes_.assign(n, 0), userCount_.assign(n, 0), usedGathers_.resize(n);
  std::vector<uint32_t> writer(model_.buffers.size(), kNone);
  for (uint32_t i = 0; i < n; ++i) {
    for (const Access& access : model_.nodes[i].accesses) {
      uint32_t gather = writer[access.buffer];
      bool again = !usedGathers_[i].empty() && usedGathers_[i].back() == gather;
      if (gather != kNone && !again) usedGathers_[i].push_back(gather), ++userCount_[gather];
    }
    if (model_.nodes[i].kind != Node::Kind::kGather) continue;
    for (const Access& access : model_.nodes[i].accesses)
      if (const Storage& storage = model_.buffers[access.buffer]; access.write && !storage.persistent)
        writer[access.buffer] = i, gatheredBytes_[i] += storage.onDevice ? storage.bytes : 0;
  }
}

// Simulates some rounds. Node i of round r has the id r * (number of nodes) + i.
class Simulation {
 public:
  Simulation(const Constructor& c, const ConstructionOptions& options)
      : c_(c), model_(c.model_), options_(options), n_(model_.nodes.size()) {
    blockers_.resize(kRounds * n_);
    for (int64_t round = 0; round < kRounds; ++round)
      users_.insert(users_.end(), c.userCount_.begin(), c.userCount_.end());
    begin_.assign(kRounds * n_, kInfinity);
    end_.assign(kRounds * n_, kInfinity);
    byLatest_ = [this](uint32_t a, uint32_t b) {
      double x = latestStartOf(a), y = latestStartOf(b);
      return x != y ? x < y : a < b;
    };
    byRemainingPath_ = [this](uint32_t a, uint32_t b) {
      double x = c_.remainingPath_[a % n_], y = c_.remainingPath_[b % n_];
      return x != y ? x > y : a < b;
    };
    // Gathers keep the order of their first uses.
    byGatherIndex_ = [this](uint32_t a, uint32_t b) {
      return std::pair(roundOf(a), c_.gatherIndex_[a % n_]) < std::pair(roundOf(b), c_.gatherIndex_[b % n_]);
    };
    for (uint32_t stream = 1; stream < c.streams_; ++stream)
      lanes_.push_back({Ready(byGatherIndex_), Ready(byLatest_), kInfinity, kNone});
    readyUpdates_ = Ready(byRemainingPath_), readyTail_ = Ready(byRemainingPath_);
    double tailStart = c.computeSeconds_ - options.tailSeconds;
    inTail_.assign(n_, false);
    mainline_ = c.sequence_;
    for (uint32_t i = 0; i < n_ && c.sequence_.empty(); ++i)
      if (c.isFixed(model_.nodes[i])) {
        inTail_[i] = c.idealStart_[i] + model_.nodes[i].seconds > tailStart && options.tailSeconds > 0;
        if (!inTail_[i]) mainline_.push_back(i), tailStart_ += model_.nodes[i].seconds;
      }
    for (uint32_t i = 0; i < n_; ++i) computeNodes_ += onCompute(model_.nodes[i]);
    for (int64_t round = 0; round < kRounds; ++round)
      for (uint32_t i = 0; i < n_; ++i) {
        uint32_t id = round * n_ + i;
        for (const Dependence& d : c.predecessors_[i]) blockers_[id] += d.distance <= round;
        if (blockers_[id] == 0) becomeReady(id);
      }
  }

  void run() {
    while (round_ <= kTakenRound + 1) {
      for (Lane& lane : lanes_) startTransfer(lane);
      startCompute();
      if (startHeldBack()) continue;
      double next = computeEnd_;
      for (const Lane& lane : lanes_) {
        next = std::min(next, lane.end);
        if (lane.end != kInfinity || lane.gathers.empty() || !gatherAllowed(*lane.gathers.begin())) continue;
        // While computation is late, a gather that may wait waits longer: until something ends.
        const double earliest = earliestStartOf(*lane.gathers.begin());
        if (earliest <= time_ || lag() == 0) next = std::min(next, std::max(time_, earliest));
      }
      if (next == kInfinity) break;  // all is done
      time_ = std::max(time_, next);
      if (computeEnd_ <= time_) computeEnd_ = kInfinity, finish(computing_);
      for (Lane& lane : lanes_)
        if (lane.end <= time_) lane.end = kInfinity, finish(lane.transferring);
    }
  }

  Order order() const;

 private:
  using Compare = std::function<bool(uint32_t, uint32_t)>;
  using Ready = std::set<uint32_t, Compare>;
  // A stream of collectives.
  struct Lane {
    Ready gathers, others;
    double end;
    uint32_t transferring;
  };

  int64_t roundOf(uint32_t id) const { return id / n_; }
  const Node& nodeOf(uint32_t id) const { return model_.nodes[id % n_]; }
  double latestStartOf(uint32_t id) const { return c_.latestStart_[id % n_] + roundOf(id) * c_.computeSeconds_; }
  // Seconds that computation is behind its ideal start; everything is needed that much later.
  double lag() const {
    double ideal = next_ < mainline_.size() ? c_.idealStart_[mainline_[next_]] : tailStart_ + tailDone_;
    return std::max(0.0, time_ - (ideal + round_ * c_.computeSeconds_));
  }
  double earliestStartOf(uint32_t id) const {
    return options_.maxGathersAhead >= 0 ? time_ : latestStartOf(id) + lag() - options_.gatherLead;
  }
  // Gathers of this round, and those of the next one that may be carried.
  bool gatherAllowed(uint32_t id) const {
    int64_t ahead = roundOf(id) - round_;
    if (ahead > 1 || (ahead == 1 && !c_.carriable_[id % n_])) return false;
    if (options_.maxGatheredBytes > 0 && gathered_ + c_.gatheredBytes_[id % n_] > options_.maxGatheredBytes)
      return false;
    if (options_.maxGathersAhead < 0) return true;
    // The gathers whose first use has begun, and maxGathersAhead more.
    const bool busy = computeEnd_ < kInfinity;
    const int64_t count = c_.gathers_.size(), round = busy ? roundOf(computing_) : round_;
    double reached = busy                       ? c_.idealStart_[computing_ % n_]
                     : next_ < mainline_.size() ? c_.idealStart_[mainline_[next_]]
                                                : c_.computeSeconds_;
    const auto first = c_.firstUses_.begin();
    const int64_t used = round * count + (std::upper_bound(first, c_.firstUses_.end(), reached) - first);
    return c_.gatherIndex_[id % n_] + roundOf(id) * count < used + options_.maxGathersAhead;
  }

  void becomeReady(uint32_t id) {
    const Node& node = nodeOf(id);
    if (node.kind == Node::Kind::kGather)
      lanes_[node.stream - 1].gathers.insert(id);
    else if (!onCompute(node))
      lanes_[node.stream - 1].others.insert(id);
    else if (!c_.sequence_.empty())
      return;
    else if (node.kind == Node::Kind::kAfterReduction)
      readyUpdates_.insert(id);
    else if (inTail_[id % n_])
      readyTail_.insert(id);
  }

  void finish(uint32_t id) {
    end_[id] = time_;
    if (nodeOf(id).kind == Node::Kind::kReduce) ++reduced_[roundOf(id)];
    for (uint32_t gather : c_.usedGathers_[id % n_])
      if (--users_[roundOf(id) * n_ + gather] == 0) gathered_ -= c_.gatheredBytes_[gather];
    for (const Dependence& d : c_.successors_[id % n_]) {
      int64_t round = roundOf(id) + d.distance;
      if (round < kRounds && --blockers_[round * n_ + d.to] == 0) becomeReady(round * n_ + d.to);
    }
  }

  void startTransfer(Lane& lane) {
    while (lane.end == kInfinity) {
      uint32_t gather = kNone, other = kNone;
      if (!lane.gathers.empty() && gatherAllowed(*lane.gathers.begin())) gather = *lane.gathers.begin();
      if (!lane.others.empty() && roundOf(*lane.others.begin()) <= round_) other = *lane.others.begin();
      uint32_t chosen = other;
      if (gather != kNone && (stalled_ || earliestStartOf(gather) <= time_)) {
        // A reduction frees gradients: it goes first unless the gather would then miss its latest start.
        bool urgent = other != kNone && latestStartOf(gather) + lag() < time_ + nodeOf(other).seconds;
        if (other == kNone || urgent) chosen = gather;
      }
      if (chosen == kNone) return;
      (chosen == gather ? lane.gathers : lane.others).erase(chosen);
      lane.transferring = chosen;
      if (c_.userCount_[chosen % n_] > 0) gathered_ += c_.gatheredBytes_[chosen % n_];
      begin_[chosen] = time_;
      lane.end = time_ + nodeOf(chosen).seconds;
      if (nodeOf(chosen).seconds == 0) lane.end = kInfinity, finish(chosen);
    }
  }

  // Where nothing is under way, what computation waits for comes after a gather that may still wait: starts it.
  bool startHeldBack() {
    bool started = false;
    for (const Lane& lane : lanes_) started |= lane.end != kInfinity;
    if (started || computeEnd_ != kInfinity) return false;
    stalled_ = true;
    for (Lane& lane : lanes_) {
      const size_t before = lane.gathers.size();
      startTransfer(lane);
      started |= lane.gathers.size() != before;
    }
    stalled_ = false;
    return started;
  }

  uint32_t pick() {
    uint32_t update = firstOfRound(readyUpdates_);
    if (options_.eagerUpdates && update != kNone) return update;
    if (next_ < mainline_.size()) {
      uint32_t id = round_ * n_ + mainline_[next_];
      bool waits = options_.maxPendingReductions >= 0 &&
                   c_.reductionsBefore_[id % n_] > reduced_[round_] + options_.maxPendingReductions;
      if (blockers_[id] == 0 && !waits) return id;
    } else if (uint32_t id = firstOfRound(readyTail_); id != kNone) {
      const bool updateFirst = update != kNone && byRemainingPath_(update, id);
      return updateFirst ? update : id;
    }
    return update;
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
      readyUpdates_.erase(id), readyTail_.erase(id);
      if (next_ < mainline_.size() && id % n_ == mainline_[next_]) ++next_;
      if (inTail_[id % n_]) tailDone_ += nodeOf(id).seconds;
      begin_[id] = time_;
      issued_.push_back(id);
      computing_ = id;
      computeEnd_ = time_ + nodeOf(id).seconds;
      if (++computed_ == computeNodes_) computed_ = 0, next_ = 0, tailDone_ = 0, ++round_;
      if (nodeOf(id).seconds == 0) computeEnd_ = kInfinity, finish(id);
    }
  }

  const Constructor& c_;
  const StepModel& model_;
  const ConstructionOptions options_;
  const uint32_t n_;
  Compare byLatest_, byGatherIndex_, byRemainingPath_;
  std::vector<Lane> lanes_;  // of the streams after the computing one
  Ready readyUpdates_, readyTail_;
  std::vector<uint32_t> blockers_, users_;  // by id: unfinished predecessors; unfinished users of a gather
  uint64_t gathered_ = 0;                   // bytes that are gathered, or being gathered, and not yet consumed
  std::vector<double> begin_, end_;
  std::vector<bool> inTail_;
  std::vector<uint32_t> mainline_, issued_;  // nodes in their given order, before the tail; ids in issue order
  uint32_t computeNodes_ = 0, computed_ = 0;
  size_t next_ = 0;                                               // in mainline_
  double tailStart_ = 0;                                          // seconds of the computation before the tail
  double tailDone_ = 0;                                           // seconds of the tail that are issued
  int64_t round_ = 0;                                             // of the computation that is issued next
  std::vector<int64_t> reduced_ = std::vector<int64_t>(kRounds);  // reductions done, by round
  double time_ = 0, computeEnd_ = kInfinity;
  bool stalled_ = false;  // gathers start whether they may wait or not
  uint32_t computing_ = kNone;
};

Order Simulation::order() const {
  Order order;
  order.carried.assign(n_, false);
  // Sort keys: the time at which each node began, relative to the begin of the body that issues it.
  double starts[kRounds];
  std::fill(std::begin(starts), std::end(starts), kInfinity);
  for (uint32_t id : issued_) starts[roundOf(id)] = std::min(starts[roundOf(id)], begin_[id]);
  double start = starts[kTakenRound], length = starts[kTakenRound + 1] - start;
  std::vector<double> key(n_);
  for (uint32_t i = 0; i < n_; ++i) {
    double begin = begin_[kTakenRound * n_ + i];
    order.carried[i] = c_.carriable_[i] && begin < start;
    key[i] = order.carried[i] ? begin - start + length : begin - start;
  }
  // Computation is sorted by its end: a collective is issued after the computation that had ended when it began.
  for (uint32_t i = 0; i < n_; ++i)
    if (onCompute(model_.nodes[i])) key[i] = end_[kTakenRound * n_ + i] - start;
  // In topological order, by key.
  std::vector<uint32_t> missing(n_, 0);
  auto within = [&](const Dependence& d) {
    return int64_t(d.distance) + order.carried[d.from] - order.carried[d.to] == 0;
  };
  for (const Dependence& d : model_.dependences) missing[d.to] += within(d);
  using Entry = std::tuple<double, bool, uint32_t>;  // computation first
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  auto add = [&](uint32_t i) { ready.emplace(key[i], !onCompute(model_.nodes[i]), i); };
  for (uint32_t i = 0; i < n_; ++i)
    if (missing[i] == 0) add(i);
  while (!ready.empty()) {
    uint32_t i = std::get<2>(ready.top());
    ready.pop();
    order.nodes.push_back(i);
    for (const Dependence& d : c_.successors_[i])
      if (within(d) && --missing[d.to] == 0) add(d.to);
  }
  return order;
}

Order Constructor::construct(const ConstructionOptions& options) const {
  Simulation simulation(*this, options);
  simulation.run();
  return simulation.order();
}

}  // namespace sheaf::schedule
