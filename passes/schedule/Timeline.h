// A discrete-event simulation of a step that repeats for ever.
#pragma once

#include <cstdint>
#include <vector>

namespace sheaf::schedule {

// What an op occupies while it runs. Ops of several streams that occupy the same unit at once share it evenly.
enum class Unit : uint8_t { kCompute, kLink, kHost };

struct Op {
  Unit unit = Unit::kCompute;
  uint32_t stream = 0;
  double seconds = 0;  // alone on its unit
};

// Op `to` of a round starts after op `from` of the round `distance` rounds earlier has ended; without such a round at
// once.
struct Dependence {
  uint32_t from = 0, to = 0, distance = 0;
};

// One round of a loop. Each stream runs its ops in the order of `ops`, one at a time, round after round.
struct Loop {
  std::vector<Op> ops;
  std::vector<Dependence> dependences;  // within a round they go forward in the order of `ops`
  double slowdown = 0;                  // a compute op's rate is divided by 1 + this while a link op runs
};

struct Timeline {
  double period = 0;                           // seconds of a round in the steady state
  double computeSeconds = 0, linkSeconds = 0;  // sums of the ops' seconds on these units
  double exposed = 0;                          // period less computeSeconds: what does not hide under computation
  std::vector<double> begin, end;              // of the last simulated round, from that round's first begin
};

Timeline play(const Loop& loop);

}  // namespace sheaf::schedule
