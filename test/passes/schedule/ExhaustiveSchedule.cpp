#include "test/passes/schedule/ExhaustiveSchedule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace sheaf::schedule {
namespace {

constexpr int64_t kShifts[] = {0, 1, -1};

class Exhaustive {
 public:
  // `least`: a period that nothing beats; the search ends when it is reached.
  Exhaustive(const StepModel& model, uint64_t limit, double least, int64_t& orders)
      : model_(model),
        limit_(limit),
        least_(least),
        orders_(orders),
        shift_(model.nodes.size()),
        waits_(model.nodes.size()) {
    for (uint32_t i = 0; i < model.nodes.size(); ++i)
      (model.nodes[i].unit == Unit::kLink ? transfers_ : computations_).push_back(i);
  }

  double run() {
    shiftFrom(0);
    return best_;
  }

 private:
  bool done() const { return best_ <= least_ * (1 + 1e-9); }

  // The round of each transfer, relative to the body that issues it.
  void shiftFrom(size_t transfer) {
    if (transfer == transfers_.size()) return waitFrom(0);
    for (int64_t shift : kShifts) {
      if (done()) return;
      shift_[transfers_[transfer]] = shift;
      shiftFrom(transfer + 1);
    }
  }

  // The computation that each gather waits for besides, and how many bodies earlier that is.
  struct Wait {
    uint32_t computation = kNone;
    uint32_t distance = 0;
  };
  void waitFrom(size_t transfer) {
    if (transfer == transfers_.size() || limit_ == 0) return order();
    const uint32_t node = transfers_[transfer];
    waits_[node] = {};
    waitFrom(transfer + 1);
    if (model_.nodes[node].kind != Node::Kind::kGather) return;
    for (uint32_t computation : computations_)
      for (uint32_t distance : {0u, 1u}) {
        if (done()) return;
        waits_[node] = {computation, distance};
        waitFrom(transfer + 1);
      }
    waits_[node] = {};
  }

  void order() {
    edges_.clear();
    for (const Dependence& d : model_.dependences) {
      const int64_t distance = d.distance + shift_[d.from] - shift_[d.to];
      if (distance < 0) return;
      edges_.push_back({d.from, d.to, static_cast<uint32_t>(distance)});
    }
    for (uint32_t node : transfers_)
      if (waits_[node].computation != kNone) edges_.push_back({waits_[node].computation, node, waits_[node].distance});
    std::vector<uint32_t> computations = computations_;
    do {
      std::vector<uint32_t> transfers = transfers_;
      do playOrder(computations, transfers);
      while (std::next_permutation(transfers.begin(), transfers.end()));
    } while (std::next_permutation(computations.begin(), computations.end()));
  }

  // Merges the two orders; none that is legal: some wait for each other.
  void playOrder(const std::vector<uint32_t>& computations, const std::vector<uint32_t>& transfers) {
    if (done()) return;
    const size_t n = model_.nodes.size();
    std::vector<int64_t> place(n, -1);
    Loop loop;
    loop.slowdown = model_.slowdown;
    auto issue = [&](uint32_t node) {
      for (const Dependence& e : edges_)
        if (e.to == node && e.distance == 0 && place[e.from] < 0) return false;
      place[node] = static_cast<int64_t>(loop.ops.size());
      loop.ops.push_back({model_.nodes[node].unit, model_.nodes[node].stream, model_.nodes[node].seconds});
      return true;
    };
    size_t c = 0, t = 0;
    while (c < computations.size() || t < transfers.size()) {
      if (c < computations.size() && issue(computations[c]))
        ++c;
      else if (t < transfers.size() && issue(transfers[t]))
        ++t;
      else
        return;
    }
    for (const Dependence& e : edges_)
      loop.dependences.push_back(
          {static_cast<uint32_t>(place[e.from]), static_cast<uint32_t>(place[e.to]), e.distance});
    ++orders_;
    const Timeline timeline = play(loop);
    if (timeline.period < best_ && fits(timeline, place)) best_ = timeline.period;
  }

  bool fits(const Timeline& timeline, const std::vector<int64_t>& place) const {
    if (limit_ == 0) return true;
    struct Life {
      double begin, end;
      uint64_t bytes;
    };
    std::vector<Life> lives;
    for (uint32_t g = 0; g < model_.nodes.size(); ++g) {
      if (model_.nodes[g].kind != Node::Kind::kGather) continue;
      Life life{timeline.begin[place[g]], timeline.end[place[g]], 0};
      for (const Access& written : model_.nodes[g].accesses) {
        if (!written.write) continue;
        life.bytes = model_.buffers[written.buffer].bytes;
        for (uint32_t i = 0; i < model_.nodes.size(); ++i)
          for (const Access& read : model_.nodes[i].accesses)
            if (!read.write && read.buffer == written.buffer)
              // The reader of the same round is in a body that many later.
              life.end = std::max(life.end, timeline.end[place[i]] + timeline.period * double(shift_[g] - shift_[i]));
      }
      lives.push_back(life);
    }
    const double same = 1e-9 * timeline.period;
    for (const Life& at : lives) {
      uint64_t bytes = 0;
      for (const Life& life : lives) {
        // Instances that have begun by then and have not ended.
        const double begun = std::floor((at.begin - life.begin + same) / timeline.period);
        const double ended = std::floor((at.begin - life.end + same) / timeline.period);
        bytes += life.bytes * static_cast<uint64_t>(std::max(begun - ended, 0.0));
      }
      if (bytes > limit_) return false;
    }
    return true;
  }

  const StepModel& model_;
  const uint64_t limit_;
  const double least_;
  int64_t& orders_;
  std::vector<uint32_t> computations_, transfers_;
  std::vector<int64_t> shift_;  // by node
  std::vector<Wait> waits_;     // by node
  std::vector<Dependence> edges_;
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace

double exhaustivePeriod(const StepModel& model, uint64_t limit, int64_t& orders) {
  double computing = 0, moving = 0;
  for (const Node& node : model.nodes) (node.unit == Unit::kLink ? moving : computing) += node.seconds;
  const double least = Exhaustive(model, 0, std::max(computing, moving), orders).run();
  return limit == 0 ? least : Exhaustive(model, limit, least, orders).run();
}

}  // namespace sheaf::schedule
