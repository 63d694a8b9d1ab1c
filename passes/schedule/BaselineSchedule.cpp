#include "passes/schedule/BaselineSchedule.h"

#include <algorithm>

#include "passes/schedule/Timeline.h"

namespace sheaf::schedule {
namespace {

constexpr uint32_t kComputeStream = 0, kGatherStream = 1, kReductionStream = 2, kReplicaStream = 3, kFetchStream = 4,
                   kStoreStream = 5, kReadStream = 6, kWriteStream = 7, kHostStream = 8;

class Player {
 public:
  Player(const BaselineStep& step, const BaselineSchedule& schedule) : step_(step), schedule_(schedule) {}

  BaselineCost play() {
    build();
    const Timeline timeline = schedule::play(loop_);
    return {timeline.period, heldBytes(timeline), schedule_.hostBytes, schedule_.fileBytes};
  }

 private:
  uint32_t add(Unit unit, uint32_t stream, double seconds) {
    loop_.ops.push_back({unit, stream, seconds});
    return loop_.ops.size() - 1;
  }
  uint32_t add(const BaselineTransfer& transfer, uint32_t stream) {
    return add(transfer.unit, stream, transfer.seconds);
  }
  uint32_t add(Unit unit, const BaselineMove& move, uint32_t stream) {
    loop_.ops.push_back({unit, stream, move.seconds, move.hostLoad});
    return loop_.ops.size() - 1;
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
        uint32_t first = kNone;  // of what has to be done for it
        auto next = [&](uint32_t op) {
          if (first != kNone) after(op - 1, op);
          if (first == kNone && made.start > 0) after(computations_[made.start - 1], op);
          if (first == kNone) first = op;
        };
        if (made.read.seconds > 0) next(add(Unit::kFileIn, made.read, kReadStream));
        if (made.fetch.seconds > 0) next(add(Unit::kToDevice, made.fetch, kFetchStream));
        gathers_.push_back(add(made.transfer, kGatherStream));
        next(gathers_.back());
        firstOfStep_.push_back(first);
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
        stores_.push_back(reductions_.back());
        if (made.store.seconds > 0) follow(add(Unit::kToHost, made.store, kStoreStream));
        if (made.write.seconds > 0) follow(add(Unit::kFileOut, made.write, kWriteStream));
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

  // An op that follows the last reduction or its store.
  void follow(uint32_t op) {
    after(stores_.back(), op);
    stores_.back() = op;
  }

  // The host's updates, which end in `done`.
  void updateOnHost(uint32_t norm, std::vector<uint32_t>& done) {
    uint32_t updated = kNone, updatedBefore = kNone, written = kNone;
    for (const BaselineHostUpdate& made : schedule_.hostUpdates) {
      uint32_t read = kNone;
      if (made.read.seconds > 0) {
        read = add(Unit::kFileIn, made.read, kReadStream);
        after(norm, read);
        const uint32_t before = schedule_.pipelineRead ? updatedBefore : updated;
        if (before != kNone) after(before, read);
        if (written != kNone && !schedule_.pipelineWrite) after(written, read);
      }
      const uint32_t update = add(Unit::kHostCompute, {made.seconds, step_.hostUpdateLoad}, kHostStream);
      if (read != kNone) after(read, update);
      if (made.after < 0) {
        after(norm, update);
        for (uint32_t store : stores_) after(store, update);
      } else {
        after(stores_[static_cast<size_t>(made.after)], update);
      }
      if (written != kNone && !schedule_.pipelineWrite) after(written, update);
      updatedBefore = updated, updated = update;
      done.push_back(update);
      if (made.write.seconds > 0) {
        written = add(Unit::kFileOut, made.write, kWriteStream);
        after(update, written);
        done.push_back(written);
      }
      if (made.back.seconds > 0) {
        const uint32_t back = add(Unit::kToDevice, made.back, kFetchStream);
        after(update, back);
        done.push_back(back);
      }
    }
  }

  // Norm, updates, gathers of updated parameters, and then the next step.
  void finishStep() {
    const uint32_t norm = add(schedule_.norm, kReductionStream);
    after(computations_.back(), norm);
    if (lastSum_ != kNone) after(lastSum_, norm);
    const uint32_t update = add(Unit::kCompute, kComputeStream, schedule_.updateSeconds);
    after(norm, update);
    if (awaited_ != kNone) after(awaited_, update);
    std::vector<uint32_t> done{update};
    updateOnHost(norm, done);
    if (!stores_.empty()) done.push_back(stores_.back());
    uint32_t last = kNone;
    for (const BaselineTransfer& gather : schedule_.gathersOfUpdated) {
      const uint32_t next = add(gather, kGatherStream);
      if (last != kNone) after(last, next);
      if (last == kNone)
        for (uint32_t op : done) after(op, next);
      last = next;
    }
    if (last != kNone) done = {last};
    for (uint32_t op : done) {
      after(op, computations_.front(), 1);
      if (!gathers_.empty()) after(op, firstOfStep_.front(), 1);
    }
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
  std::vector<uint32_t> firstOfStep_;  // by gather: the first op that it takes
  std::vector<uint32_t> stores_;       // by reduction: the last op that follows it, or itself
  uint32_t lastSum_ = kNone;           // over replicas, on a stream of its own
  uint32_t awaited_ = kNone;           // the reduction that the next computation waits for
};

}  // namespace

BaselineCost playBaselineSchedule(const BaselineStep& step, const BaselineSchedule& schedule) {
  return Player(step, schedule).play();
}

}  // namespace sheaf::schedule
