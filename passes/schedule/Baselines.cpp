#include "passes/schedule/Baselines.h"

#include <algorithm>
#include <limits>

#include "runtime/base/Text.h"

namespace sheaf::schedule {
namespace {

// What a system may be told.
struct Knobs {
  std::string text;
  int64_t prefetch = 1;     // gathers under way beyond those in use
  uint64_t keptGroups = 0;  // groups that stay gathered from forward to backward, those used last first
  uint64_t ahead = 0;       // most bytes gathered ahead of use; 0: any
};

// One gather and the computation that reads what it brings.
struct Visit {
  uint32_t group, first, last;
};

class PeerLoop {
 public:
  PeerLoop(const BaselineStep& step, const Knobs& knobs) : step_(step), knobs_(knobs) {
    findVisits();
    build();
    measure();
  }

  Loop loop;
  uint64_t bytes = 0;

 private:
  void findVisits() {
    // Groups by their last forward use: what is used last is kept most cheaply.
    std::vector<uint32_t> order(step_.groups.size());
    for (uint32_t g = 0; g < order.size(); ++g) order[g] = g;
    auto lastForward = [&](uint32_t g) {
      int64_t last = -1;
      for (auto [first, end] : step_.groups[g].uses)
        if (first < step_.backward) last = end;
      return last;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return lastForward(a) > lastForward(b); });
    for (size_t k = 0; k < order.size(); ++k) {
      const BaselineGroup& group = step_.groups[order[k]];
      bool kept = k < knobs_.keptGroups;
      for (size_t u = 0; u < group.uses.size(); ++u) {
        if (u > 0 && kept)
          visits_.back().last = std::max(visits_.back().last, group.uses[u].second);
        else
          visits_.push_back({order[k], group.uses[u].first, group.uses[u].second});
      }
    }
    std::stable_sort(visits_.begin(), visits_.end(), [](const Visit& a, const Visit& b) { return a.first < b.first; });
    // A gather may start when the computation before `start` is over.
    start_.resize(visits_.size());
    for (size_t v = 0; v < visits_.size(); ++v) {
      size_t from = v >= static_cast<size_t>(knobs_.prefetch) ? v - knobs_.prefetch : 0;
      if (knobs_.ahead > 0) {
        // As early as the bytes allow that wait for their use; one group always.
        uint64_t waiting = step_.groups[visits_[v].group].gatheredBytes;
        for (from = v; from > 0; --from) {
          waiting += step_.groups[visits_[from - 1].group].gatheredBytes;
          if (waiting > knobs_.ahead) break;
        }
      }
      start_[v] = visits_[from].first;
      if (from == 0 && knobs_.prefetch > 0) start_[v] = 0;
    }
    // The forward and the backward pass are scheduled apart: nothing is gathered across.
    for (size_t v = 0; v < visits_.size(); ++v)
      if (visits_[v].first >= step_.backward && start_[v] < step_.backward) start_[v] = step_.backward;
  }

  uint32_t op(Unit unit, uint32_t stream, double seconds) {
    loop.ops.push_back({unit, stream, seconds});
    return loop.ops.size() - 1;
  }
  void after(uint32_t from, uint32_t to, uint32_t distance = 0) { loop.dependences.push_back({from, to, distance}); }

  // Computation, gathers and reductions each have a stream; the optimizer runs when all is reduced, and the next step
  // begins when it is done.
  void build() {
    loop.slowdown = step_.slowdown;
    std::vector<uint32_t> gathers;
    size_t next = 0;
    uint32_t before = kNone;
    for (uint32_t c = 0; c < step_.compute.size(); ++c) {
      for (; next < visits_.size() && start_[next] <= c; ++next) {
        gathers.push_back(op(Unit::kLink, 1, step_.groups[visits_[next].group].gatherSeconds));
        if (before != kNone) after(before, gathers.back());
      }
      before = op(Unit::kCompute, 0, step_.compute[c]);
      for (size_t v = 0; v < next; ++v)
        if (visits_[v].first == c) after(gathers[v], before);
      for (const BaselineGroup& group : step_.groups)
        if (group.gradient == c) {
          uint32_t reduction = op(Unit::kLink, 2, group.reduceSeconds);
          after(before, reduction);
        }
    }
    double updates = 0;
    for (const BaselineGroup& group : step_.groups) updates += group.updateSeconds;
    uint32_t scalars = op(Unit::kLink, 2, step_.scalarSeconds);
    after(before, scalars);
    uint32_t optimizer = op(Unit::kCompute, 0, updates);
    after(scalars, optimizer);
    if (!gathers.empty()) after(optimizer, gathers.front(), 1);
    if (gathers.empty() || visits_.front().first > 0) after(optimizer, 0, 1);
  }

  void measure() {
    const size_t n = step_.compute.size();
    std::vector<int64_t> change(n + 1, 0);
    for (size_t v = 0; v < visits_.size(); ++v) {
      change[start_[v]] += step_.groups[visits_[v].group].gatheredBytes;
      change[visits_[v].last + 1] -= step_.groups[visits_[v].group].gatheredBytes;
    }
    for (const BaselineGroup& group : step_.groups) {
      if (group.gradient == kNone || group.firstGradient == kNone) continue;
      // Reduced under the computation that follows: until the next group's is complete.
      uint32_t end = n - 1;
      for (const BaselineGroup& other : step_.groups)
        if (other.gradient != kNone && other.gradient > group.gradient) end = std::min(end, other.gradient);
      change[group.firstGradient] += group.gradientBytes;
      change[end + 1] -= group.gradientBytes;
    }
    int64_t live = 0;
    for (size_t c = 0; c < n; ++c) {
      live += change[c];
      bytes = std::max(bytes, step_.stateBytes + step_.liveBytes[c] + live);
    }
  }

  const BaselineStep& step_;
  const Knobs& knobs_;
  std::vector<Visit> visits_;
  std::vector<uint32_t> start_;
};

std::vector<Knobs> knobsOf(const BaselineStep& step, Baseline baseline) {
  std::vector<Knobs> all;
  uint64_t groups = step.groups.size(), gathered = 0;
  for (const BaselineGroup& group : step.groups) gathered += group.gatheredBytes;
  switch (baseline) {
    case Baseline::kFsdp2:
      all.push_back({"reshard_after_forward=True", 1, 0, 0});
      all.push_back({"reshard_after_forward=False", 1, groups, 0});
      break;
    case Baseline::kDeepSpeed:
      for (int64_t prefetch : {1, 2, 4, 8, 16})
        all.push_back({cat("prefetch of ", prefetch, " groups"), prefetch, 0, 0});
      break;
    case Baseline::kDeepCompile:
      for (uint64_t part : {16, 8, 4, 2, 1})
        for (uint64_t kept : {uint64_t{0}, groups / 8, groups / 4, groups / 2, groups})
          all.push_back({cat(kept, " of ", groups, " groups kept, 1/", part, " of the parameters ahead"), 1, kept,
                         std::max<uint64_t>(gathered / part, 1)});
      break;
    case Baseline::kEager:
      all.push_back({"gather at use", 0, 0, 0});
      break;
  }
  return all;
}

}  // namespace

const char* baselineName(Baseline baseline) {
  switch (baseline) {
    case Baseline::kFsdp2:
      return "fsdp2";
    case Baseline::kDeepSpeed:
      return "deepspeed";
    case Baseline::kDeepCompile:
      return "deepcompile";
    case Baseline::kEager:
      break;
  }
  return "eager";
}

BaselineResult playBaseline(const BaselineStep& step, Baseline baseline, uint64_t memoryLimit) {
  BaselineResult best;
  best.seconds = std::numeric_limits<double>::infinity();
  best.fits = false;
  for (const Knobs& knobs : knobsOf(step, baseline)) {
    PeerLoop loop(step, knobs);
    BaselineResult result{play(loop.loop).period, loop.bytes, knobs.text,
                          memoryLimit == 0 || loop.bytes <= memoryLimit};
    bool first = best.knobs.empty();
    bool better = result.fits != best.fits ? result.fits
                  : result.fits            ? result.seconds < best.seconds
                                           : result.bytes < best.bytes;
    if (first || better) best = std::move(result);
  }
  return best;
}

}  // namespace sheaf::schedule
