// A discrete-event simulation of a loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace sheaf::schedule {

// The unit that an op occupies while it runs. Ops of several streams on one unit share it evenly. Collectives occupy
// the link within nodes, the network between them, or both: one on both shares whichever is more in use. Transfers
// between spaces occupy the unit of their kind, and share the host's memory, with computation of the host's processors.
enum class Unit : uint8_t {
  kCompute,
  kHost,
  kLink,  // both of the next
  kNodeLink,
  kNetwork,
  kToDevice,
  kToHost,
  kFileIn,
  kFileOut,
  kHostCompute
};
inline constexpr size_t kUnits = 10;

constexpr bool isLink(Unit unit) {
  return unit >= Unit::kLink;
}
// Whether it shares the host's memory; whether it is that of a transfer between memories, or from or to files.
constexpr bool joinsSpaces(Unit unit) {
  return unit >= Unit::kToDevice;
}
constexpr bool isCopy(Unit unit) {
  return unit == Unit::kToDevice || unit == Unit::kToHost;
}
constexpr bool isFile(Unit unit) {
  return unit == Unit::kFileIn || unit == Unit::kFileOut;
}
constexpr bool usesNodeLink(Unit unit) {
  return unit == Unit::kLink || unit == Unit::kNodeLink;
}
constexpr bool usesNetwork(Unit unit) {
  return unit == Unit::kLink || unit == Unit::kNetwork;
}

// What computation loses to transfers of so many seconds that divide its rate by 1 + slowdown.
constexpr double lostTo(double seconds, double slowdown) {
  return seconds * slowdown / (1 + slowdown);
}

struct Op {
  Unit unit = Unit::kCompute;
  uint32_t stream = 0;
  double seconds = 0;  // alone on its unit
  double hostLoad =
      0;  // part of the host memory's bandwidth that it then uses; collectives count once, next to transfers
};

// Op `to` of a round starts after the end of op `from` of the round that is `distance` rounds earlier, if there is one.
struct Dependence {
  uint32_t from = 0, to = 0, distance = 0;
};

// One round of a loop. Each stream runs its ops in the order of `ops`, one at a time, round after round.
struct Loop {
  std::vector<Op> ops;
  std::vector<Dependence> dependences;  // with distance 0: `from` comes before `to` in `ops`
  double slowdown = 0;                  // a compute op's rate is divided by 1 + this while a link op runs
  // The same while the network alone is in use; at most the slowdown, which it is if there is none.
  std::optional<double> networkSlowdown;
  double onNetwork() const { return networkSlowdown.value_or(slowdown); }
  double copySlowdown = 0;  // the same while transfers between memories, or updates on the host, run
  double fileSlowdown = 0;  // the same while transfers of files run
  // What transfers that occupy the links for so many seconds take from computation at least, in seconds.
  double lostTo(double onLink, double onNet) const {
    return std::max(schedule::lostTo(onLink, slowdown), schedule::lostTo(onNet, onNetwork()));
  }
};

struct Timeline {
  double period = 0;                               // seconds of a round in the steady state
  double computeSeconds = 0;                       // sum of the ops' seconds, at full rate
  double nodeLinkSeconds = 0, networkSeconds = 0;  // the same; ops that occupy both count in both
  double unitSeconds[kUnits] = {};                 // of each unit by itself
  double exposed = 0;                              // period - computeSeconds: not hidden under computation
  std::vector<double> begin, end;                  // of the last simulated round, relative to its first begin
};

Timeline play(const Loop& loop);

}  // namespace sheaf::schedule
