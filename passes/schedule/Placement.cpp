#include "passes/schedule/Placement.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "passes/schedule/Timeline.h"

namespace sheaf::schedule {
namespace {

using Space = plan::Buffer::Space;
using Transfer = plan::Transfer;

// Of transfers that cost no time because they hide, those are taken that occupy their links for less time: this part
// of it counts.
constexpr double kHidden = 0.01;

// Seconds that transfers take in a step.
struct Use {
  double toDevice = 0, toHost = 0, fileIn = 0, fileOut = 0;
  double hostMemory = 0;  // in which they would occupy all of its bandwidth
  double hostCompute = 0;
  double exposed = 0;  // that find no computation to hide under
  // What computation loses to the transfers of files in each direction.
  double lostIn = 0, lostOut = 0;

  Use& operator+=(const Use& o) {
    toDevice += o.toDevice, toHost += o.toHost, fileIn += o.fileIn, fileOut += o.fileOut;
    lostIn += o.lostIn, lostOut += o.lostOut;
    hostMemory += o.hostMemory, hostCompute += o.hostCompute, exposed += o.exposed;
    return *this;
  }
  double sum() const { return toDevice + toHost + fileIn + fileOut + hostCompute; }
};

class Placer {
 public:
  Placer(const PlacementProblem& problem, const profile::Profile& profile)
      : problem_(problem), profile_(profile), live_(problem.live), target_(problem.deviceBytes) {
    for (const Movable& movable : problem.movables)
      result_.placed.push_back({plan::Buffer::DEVICE, std::vector<bool>(movable.gaps.size())});
  }

  Placement run() {
    const Space first = problem_.hostBytes > 0 ? plan::Buffer::HOST : plan::Buffer::FILE;
    while (std::optional<uint32_t> worst = neediest()) {
      const std::optional<Item> item = cheapest(*worst, first);
      // Nothing can wait elsewhere there: other places need not become better than this one.
      if (!item) {
        target_ = live_[*worst];
        continue;
      }
      take(*item);
      taken_.push_back(*item);
    }
    giveBack();
    fillHost(first);
    result_.bytes = live_.empty() ? 0 : *std::max_element(live_.begin(), live_.end());
    return std::move(result_);
  }

 private:
  // Gaps of a movable that are taken together.
  struct Item {
    uint32_t movable = 0;
    std::vector<uint32_t> gaps;
    Use use;
  };

  std::optional<uint32_t> neediest() const {
    const auto most = std::max_element(live_.begin(), live_.end());
    if (most == live_.end() || *most <= target_) return std::nullopt;
    return static_cast<uint32_t>(most - live_.begin());
  }

  double stepSeconds(const Use& use) const {
    const double slowed =
        std::max({lostTo(std::max(use.toDevice, use.toHost), profile_.copySlowdown()), use.lostIn, use.lostOut});
    return std::max({problem_.computeSeconds + use.exposed + slowed, use.toDevice, use.toHost, use.fileIn, use.fileOut,
                     use.hostMemory, use.hostCompute});
  }

  Use useOf(const Movable& movable, const Gap& gap, Space space) const {
    const bool onHost = movable.updateSeconds > 0, file = space == plan::Buffer::FILE && !onHost;
    const Transfer::Kind in = file ? Transfer::READ_FILE : Transfer::TO_DEVICE;
    const Transfer::Kind out = file ? Transfer::WRITE_FILE : Transfer::TO_HOST;
    const double fetch = profile_.seconds(in, movable.bytes), store = profile_.seconds(out, movable.bytes);
    Use use;
    (file ? use.fileIn : use.toDevice) = gap.fetches * fetch;
    (file ? use.fileOut : use.toHost) = gap.stores * store;
    use.hostMemory = gap.fetches * fetch * profile_.hostLoad(in, movable.bytes) +
                     gap.stores * store * profile_.hostLoad(out, movable.bytes);
    if (onHost) {
      use.hostCompute = movable.updateSeconds;
      use.hostMemory += movable.updateSeconds * profile_.hostUpdateLoad();
    }
    if (onHost && space == plan::Buffer::FILE) {
      use.fileIn = profile_.seconds(Transfer::READ_FILE, movable.bytes);
      use.fileOut = profile_.seconds(Transfer::WRITE_FILE, movable.bytes);
      use.hostMemory += use.fileIn * profile_.hostLoad(Transfer::READ_FILE, movable.bytes) +
                        use.fileOut * profile_.hostLoad(Transfer::WRITE_FILE, movable.bytes);
    }
    const double slowdown = profile_.fileSlowdown(movable.bytes);
    use.lostIn = lostTo(use.fileIn, slowdown), use.lostOut = lostTo(use.fileOut, slowdown);
    const double moving = (gap.fetches > 0 ? fetch : 0) + (gap.stores > 0 ? store : 0);
    use.exposed = std::max(gap.fetches, gap.stores) * std::max(moving - gap.between, 0.0);
    return use;
  }

  static bool covers(const Gap& gap, uint32_t position) {
    return std::any_of(gap.spans.begin(), gap.spans.end(),
                       [&](const auto& span) { return span.first <= position && position < span.second; });
  }

  // Of the gaps with the position, the one whose transfers take the fewest seconds for each byte that it frees at the
  // positions at which too many are alive.
  std::optional<Item> cheapest(uint32_t position, Space space) const {
    std::vector<uint32_t> over(live_.size() + 1);
    for (size_t i = 0; i < live_.size(); ++i) over[i + 1] = over[i] + (live_[i] > target_);
    const double before = stepSeconds(use_);
    std::optional<Item> best;
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t m = 0; m < problem_.movables.size(); ++m) {
      const Movable& movable = problem_.movables[m];
      const std::vector<bool>& known = result_.placed[m].gaps;
      for (uint32_t g = 0; g < movable.gaps.size(); ++g) {
        if (known[g] || !covers(movable.gaps[g], position)) continue;
        Item item{m, {g}, {}};
        if (movable.persistent && g > 0 && !known[0]) item.gaps.insert(item.gaps.begin(), 0);
        double freed = 0;
        Use after = use_;
        for (uint32_t gap : item.gaps) {
          item.use += useOf(movable, movable.gaps[gap], space);
          for (const auto& [begin, end] : movable.gaps[gap].spans) freed += over[end] - over[begin];
        }
        after += item.use;
        const double seconds = stepSeconds(after) - before + kHidden * item.use.sum();
        const double rate = seconds / (freed * static_cast<double>(movable.bytes));
        // Of equal rates, but for rounding, the first one's.
        if (rate >= least * (1 - 1e-9)) continue;
        least = rate, best = std::move(item);
      }
    }
    return best;
  }

  void set(uint32_t movable, uint32_t gap, bool away) {
    result_.placed[movable].gaps[gap] = away;
    const Movable& m = problem_.movables[movable];
    for (const auto& [begin, end] : m.gaps[gap].spans)
      for (uint32_t i = begin; i < end; ++i) live_[i] += away ? -m.bytes : m.bytes;
  }

  void take(const Item& item) {
    for (uint32_t gap : item.gaps) set(item.movable, gap, true);
    use_ += item.use;
  }

  // What was taken for the sake of a place that something taken later frees as well.
  void giveBack() {
    for (size_t i = taken_.size(); i-- > 0;) {
      const uint32_t m = taken_[i].movable;
      const Movable& movable = problem_.movables[m];
      for (size_t k = taken_[i].gaps.size(); k-- > 0;) {
        const uint32_t gap = taken_[i].gaps[k];
        std::vector<bool>& gaps = result_.placed[m].gaps;
        if (movable.persistent && gap == 0 && std::count(gaps.begin(), gaps.end(), true) > 1) continue;
        const auto& spans = movable.gaps[gap].spans;
        const bool room = std::all_of(spans.begin(), spans.end(), [&](const auto& span) {
          return std::all_of(live_.begin() + span.first, live_.begin() + span.second,
                             [&](uint64_t live) { return live + movable.bytes <= target_; });
        });
        if (room) set(m, gap, false);
      }
    }
  }

  // Where host memory is full, what costs least more in files for each byte goes there.
  void fillHost(Space first) {
    struct Moved {
      uint32_t movable;
      double more;  // seconds a byte
    };
    std::vector<Moved> moved;
    uint64_t bytes = 0;
    for (uint32_t m = 0; m < result_.placed.size(); ++m) {
      const Movable& movable = problem_.movables[m];
      double more = 0;
      bool away = false;
      for (uint32_t g = 0; g < movable.gaps.size(); ++g) {
        if (!result_.placed[m].gaps[g]) continue;
        away = true;
        const Use host = useOf(movable, movable.gaps[g], plan::Buffer::HOST);
        const Use file = useOf(movable, movable.gaps[g], plan::Buffer::FILE);
        more += file.sum() + file.exposed - host.sum() - host.exposed;
      }
      if (!away) continue;
      result_.placed[m].space = first;
      if (first == plan::Buffer::FILE) continue;
      moved.push_back({m, more / static_cast<double>(movable.bytes)});
      bytes += movable.bytes;
    }
    std::stable_sort(moved.begin(), moved.end(), [](const Moved& a, const Moved& b) { return a.more < b.more; });
    for (const Moved& one : moved) {
      if (bytes <= problem_.hostBytes) break;
      result_.placed[one.movable].space = plan::Buffer::FILE;
      bytes -= problem_.movables[one.movable].bytes;
    }
  }

  const PlacementProblem& problem_;
  const profile::Profile& profile_;
  std::vector<uint64_t> live_;
  uint64_t target_;
  Use use_;
  std::vector<Item> taken_;
  Placement result_;
};

}  // namespace

Placement choosePlacement(const PlacementProblem& problem, const profile::Profile& profile) {
  return Placer(problem, profile).run();
}

}  // namespace sheaf::schedule
