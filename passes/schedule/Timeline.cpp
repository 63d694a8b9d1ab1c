#include "passes/schedule/Timeline.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sheaf::schedule {
namespace {

// The steady state is reached when two periods differ by less than this relative difference, or after kMaxRounds.
constexpr double kSteady = 1e-9;
constexpr int64_t kMaxRounds = 16;

class Player {
 public:
  explicit Player(const Loop& loop) : loop_(loop), ended_(loop.ops.size(), 0) {
    for (uint32_t i = 0; i < loop.ops.size(); ++i) {
      if (loop.ops[i].stream >= streams_.size()) streams_.resize(loop.ops[i].stream + 1);
      streams_[loop.ops[i].stream].ops.push_back(i);
    }
    std::erase_if(streams_, [](const Stream& stream) { return stream.ops.empty(); });
    // Dependences, sorted by the op that waits.
    firstWait_.assign(loop.ops.size() + 1, 0);
    for (const Dependence& d : loop.dependences) ++firstWait_[d.to + 1];
    for (size_t i = 1; i < firstWait_.size(); ++i) firstWait_[i] += firstWait_[i - 1];
    waits_.resize(loop.dependences.size());
    std::vector<uint32_t> next(firstWait_.begin(), firstWait_.end() - 1);
    for (const Dependence& d : loop.dependences) waits_[next[d.to]++] = d;
  }

  Timeline run() {
    Timeline timeline;
    for (const Op& op : loop_.ops) {
      timeline.unitSeconds[size_t(op.unit)] += op.seconds;
      if (op.unit == Unit::kCompute) timeline.computeSeconds += op.seconds;
      if (usesNodeLink(op.unit)) timeline.nodeLinkSeconds += op.seconds;
      if (usesNetwork(op.unit)) timeline.networkSeconds += op.seconds;
    }
    if (loop_.ops.empty()) return timeline;
    std::vector<double> ends;
    while (ends.size() < kMaxRounds) {
      if (!finishRound()) {
        timeline.period = timeline.exposed = std::numeric_limits<double>::infinity();
        return timeline;
      }
      ends.push_back(time_);
      size_t n = ends.size();
      if (n < 3) continue;
      timeline.period = ends[n - 1] - ends[n - 2];
      if (std::abs(timeline.period - (ends[n - 2] - ends[n - 3])) <= kSteady * timeline.period) break;
    }
    // Rounds that do not settle alternate between periods: take the average.
    if (ends.size() == kMaxRounds)
      timeline.period = (ends.back() - ends[kMaxRounds / 2 - 1]) / (kMaxRounds - kMaxRounds / 2);
    timeline.exposed = std::max(0.0, timeline.period - timeline.computeSeconds);
    size_t n = loop_.ops.size(), from = (ends.size() - 1) * n;
    timeline.begin.assign(begin_.begin() + from, begin_.begin() + from + n);
    timeline.end.assign(end_.begin() + from, end_.begin() + from + n);
    double start = *std::min_element(timeline.begin.begin(), timeline.begin.end());
    for (double& t : timeline.begin) t -= start;
    for (double& t : timeline.end) t -= start;
    return timeline;
  }

 private:
  struct Stream {
    std::vector<uint32_t> ops;
    size_t next = 0;  // index in ops
    int64_t round = 0;
    uint32_t met = 0;  // dependences of the next op that are met; the rest have not been looked at
    bool running = false;
    double left = 0;  // seconds of the running op at full rate
  };

  // Simulates until every stream has finished one more round; some may be ahead. False: a deadlock.
  bool finishRound() {
    ++rounds_;
    begin_.resize((rounds_ + 1) * loop_.ops.size());
    end_.resize((rounds_ + 1) * loop_.ops.size());
    while (std::any_of(streams_.begin(), streams_.end(), [&](const Stream& s) { return s.round < rounds_; })) {
      while (startReady()) {
      }
      if (!advance()) return false;
    }
    return true;
  }

  bool ready(Stream& stream) {
    uint32_t op = stream.ops[stream.next];
    for (uint32_t i = firstWait_[op] + stream.met; i < firstWait_[op + 1]; ++i, ++stream.met)
      if (ended_[waits_[i].from] <= stream.round - int64_t(waits_[i].distance)) return false;
    return true;
  }

  // Starts every op that is ready. Ops of zero seconds end at once; true: there were some, and others may be ready now.
  bool startReady() {
    bool ended = false;
    for (Stream& stream : streams_) {
      // No stream runs more than a round ahead of the round that is being finished.
      while (!stream.running && stream.round <= rounds_ && ready(stream)) {
        uint32_t op = stream.ops[stream.next];
        begin_[stream.round * loop_.ops.size() + op] = time_;
        stream.left = loop_.ops[op].seconds;
        stream.running = stream.left > 0;
        if (!stream.running) end(stream), ended = true;
      }
    }
    return ended;
  }

  bool advance() {
    int computing = 0, onNodeLink = 0, onNetwork = 0, units[kUnits] = {};
    double hostLoad = 0, linkLoad = 0;
    for (const Stream& stream : streams_) {
      if (!stream.running) continue;
      ++units[size_t(unitOf(stream))];
      double& load = joinsSpaces(unitOf(stream)) ? hostLoad : linkLoad;
      const double own = loop_.ops[stream.ops[stream.next]].hostLoad;
      load = joinsSpaces(unitOf(stream)) ? load + own : std::max(load, own);
      computing += unitOf(stream) == Unit::kCompute;
      onNodeLink += usesNodeLink(unitOf(stream));
      onNetwork += usesNetwork(unitOf(stream));
    }
    const bool copying =
        units[size_t(Unit::kToDevice)] + units[size_t(Unit::kToHost)] + units[size_t(Unit::kHostCompute)] > 0;
    const bool onFiles = units[size_t(Unit::kFileIn)] + units[size_t(Unit::kFileOut)] > 0;
    const double slowdown = 1 + std::max({onNodeLink > 0  ? loop_.slowdown
                                          : onNetwork > 0 ? loop_.onNetwork()
                                                          : 0,
                                          copying ? loop_.copySlowdown : 0, onFiles ? loop_.fileSlowdown : 0});
    double rate[kUnits];
    rate[int(Unit::kCompute)] = 1 / (std::max(computing, 1) * slowdown);
    rate[int(Unit::kHost)] = 1;
    rate[int(Unit::kLink)] = 1.0 / std::max({onNodeLink, onNetwork, 1});
    rate[int(Unit::kNodeLink)] = 1.0 / std::max(onNodeLink, 1);
    rate[int(Unit::kNetwork)] = 1.0 / std::max(onNetwork, 1);
    for (Unit unit : {Unit::kToDevice, Unit::kToHost, Unit::kFileIn, Unit::kFileOut, Unit::kHostCompute})
      rate[size_t(unit)] = 1 / (std::max(units[size_t(unit)], 1) * std::max(hostLoad + linkLoad, 1.0));
    if (hostLoad > 0)
      for (Unit unit : {Unit::kLink, Unit::kNodeLink, Unit::kNetwork})
        rate[size_t(unit)] /= std::max(hostLoad + linkLoad, 1.0);
    double step = std::numeric_limits<double>::infinity();
    for (const Stream& stream : streams_)
      if (stream.running) step = std::min(step, stream.left / rate[int(unitOf(stream))]);
    if (step == std::numeric_limits<double>::infinity()) {
      // No op is running: the round is done if only ops of zero seconds were left.
      return std::all_of(streams_.begin(), streams_.end(), [&](const Stream& s) { return s.round >= rounds_; });
    }
    time_ += step;
    for (Stream& stream : streams_) {
      if (!stream.running) continue;
      // Ops that end together end together, whatever the rounding.
      bool over = stream.left / rate[int(unitOf(stream))] <= step * (1 + 1e-12);
      stream.left -= step * rate[int(unitOf(stream))];
      if (over) stream.running = false, end(stream);
    }
    return true;
  }

  Unit unitOf(const Stream& stream) const { return loop_.ops[stream.ops[stream.next]].unit; }

  void end(Stream& stream) {
    uint32_t op = stream.ops[stream.next];
    end_[stream.round * loop_.ops.size() + op] = time_;
    ++ended_[op];
    stream.met = 0;
    if (++stream.next == stream.ops.size()) stream.next = 0, ++stream.round;
  }

  const Loop& loop_;
  std::vector<Stream> streams_;
  std::vector<uint32_t> firstWait_;
  std::vector<Dependence> waits_;
  std::vector<int64_t> ended_;       // by op: rounds in which it has ended
  std::vector<double> begin_, end_;  // by round * (number of ops) + op
  int64_t rounds_ = 0;               // finished, with the one in progress
  double time_ = 0;
};

}  // namespace

Timeline play(const Loop& loop) {
  return Player(loop).run();
}

}  // namespace sheaf::schedule
