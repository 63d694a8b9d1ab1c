#include "passes/schedule/BaselineSchedule.h"

#include <algorithm>

#include "passes/schedule/Timeline.h"

namespace sheaf::schedule {
namespace {

constexpr uint32_t kComputeStream = 0, kGatherStream = 1, kReductionStream = 2, kReplicaStream = 3;

class Player {
 public:
  Player(const BaselineStep& step, const BaselineSchedule& schedule) : step_(step), schedule_(schedule) {}

  BaselineCost play() {
    build();
    const Timeline timeline = schedule::play(loop_);
    return {timeline.period, heldBytes(timeline)};
  }

 private:
  uint32_t add(Unit unit, uint32_t stream, double seconds) {
    loop_.ops.push_back({unit, stream, seconds});
    return loop_.ops.size() - 1;
  }
  uint32_t add(const BaselineTransfer& transfer, uint32_t stream) {
    return add(transfer.unit, stream, transfer.seconds);
  }
  void after(uint32_t from, uint32_t to, uint32_t distance = 0) { loop_.dependences.push_back({from, to, distance}); }

  void build() {
    const uint32_t computations = step_.compute.size();
    loop_.slowdown = step_.slowdown;
    loop_.networkSlowdown = step_.networkSlowdown;
    // By computation: the gathers that it waits for.
    std::vector<std::vector<uint32_t>> needs(computations);
    for (uint32_t g = 0; g < schedule_.gathers.size(); ++g) needs[schedule_.gathers[g].first].push_back(g);
    uint32_t gather = 0, reduction = 0;
    for (uint32_t c = 0; c < computations; ++c) {
      for (; gather < schedule_.gathers.size() && schedule_.gathers[gather].start <= c; ++gather) {
        const BaselineGather& made = schedule_.gathers[gather];
        gathers_.push_back(add(made.transfer, kGatherStream));
        if (made.start > 0) after(computations_[made.start - 1], gathers_.back());
        gathered_.push_back(made.second.seconds > 0 ? add(made.second, kGatherStream) : gathers_.back());
      }
      computations_.push_back(add(Unit::kCompute, kComputeStream, step_.compute[c]));
      for (uint32_t g : needs[c]) after(gathered_[g], computations_.back());
      if (awaited_ != kNone) after(awaited_, computations_.back());
      awaited_ = kNone;
      for (; reduction < schedule_.reductions.size() && schedule_.reductions[reduction].ready <= c; ++reduction) {
        const BaselineReduction& made = schedule_.reductions[reduction];
        reductions_.push_back(add(made.transfer, kReductionStream));
        after(computations_.back(), reductions_.back());
        if (made.across.seconds > 0) sumOverReplicas(made.across);
        if (schedule_.pending >= 0 && reduction >= schedule_.pending)
          awaited_ = reductions_[reduction - schedule_.pending];
      }
    }
    finishStep();
  }

  void sumOverReplicas(const BaselineTransfer& across) {
    const uint32_t sum = add(across, schedule_.replicasApart ? kReplicaStream : kReductionStream);
    if (schedule_.replicasApart)
      after(reductions_.back(), sum), lastSum_ = sum;
    else
      reductions_.back() = sum;
  }

  // Norm, updates, gathers of updated parameters, and then the next step.
  void finishStep() {
    const uint32_t norm = add(schedule_.norm, kReductionStream);
    after(computations_.back(), norm);
    if (lastSum_ != kNone) after(lastSum_, norm);
    const uint32_t update = add(Unit::kCompute, kComputeStream, schedule_.updateSeconds);
    after(norm, update);
    if (awaited_ != kNone) after(awaited_, update);
    uint32_t last = update;
    for (const BaselineTransfer& gather : schedule_.gathersOfUpdated) {
      const uint32_t next = add(gather, kGatherStream);
      after(last, next);
      last = next;
    }
    after(last, computations_.front(), 1);
    if (!gathers_.empty()) after(last, gathers_.front(), 1);
  }

  uint64_t heldBytes(const Timeline& timeline) const {
    struct Change {
      double time;
      int64_t bytes;
      bool operator<(const Change& other) const { return time != other.time ? time < other.time : bytes < other.bytes; }
    };
    std::vector<Change> changes;
    auto hold = [&](uint64_t bytes, double from, double to) {
      if (bytes == 0) return;
      changes.push_back({from, static_cast<int64_t>(bytes)});
      changes.push_back({to, -static_cast<int64_t>(bytes)});
    };
    auto begin = [&](uint32_t computation) { return timeline.begin[computations_[computation]]; };
    auto end = [&](uint32_t computation) { return timeline.end[computations_[computation]]; };
    for (uint32_t c = 0; c < step_.liveBytes.size(); ++c) {
      const bool last = c + 1 == step_.liveBytes.size();
      hold(step_.liveBytes[c], begin(c), last ? end(c) : begin(c + 1));
    }
    for (size_t g = 0; g < schedule_.gathers.size(); ++g)
      for (const BaselineGather::Part& part : schedule_.gathers[g].parts)
        hold(part.bytes, timeline.begin[gathers_[g]], end(part.last));
    for (size_t r = 0; r < schedule_.reductions.size(); ++r)
      hold(schedule_.reductions[r].bytes, begin(schedule_.reductions[r].first), timeline.end[reductions_[r]]);
    for (const HeldBytes& held : schedule_.held) hold(held.bytes, begin(held.first), end(held.last));
    std::sort(changes.begin(), changes.end());
    int64_t now = 0, most = 0;
    for (const Change& change : changes) most = std::max(most, now += change.bytes);
    return schedule_.constantBytes + static_cast<uint64_t>(most);
  }

  const BaselineStep& step_;
  const BaselineSchedule& schedule_;
  Loop loop_;
  // As ops of the loop; gathers by their first and their last op, reductions by their last.
  std::vector<uint32_t> computations_, gathers_, gathered_, reductions_;
  uint32_t lastSum_ = kNone;  // over replicas, on a stream of its own
  uint32_t awaited_ = kNone;  // the reduction that the next computation waits for
};

}  // namespace

BaselineCost playBaselineSchedule(const BaselineStep& step, const BaselineSchedule& schedule) {
  return Player(step, schedule).play();
}

}  // namespace sheaf::schedule
