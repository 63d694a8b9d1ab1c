// What no schedule of a loop's ops can beat.
#pragma once

#include <span>

#include "passes/schedule/MemoryBound.h"
#include "passes/schedule/Timeline.h"

namespace sheaf::schedule {

enum class BoundBy { kCompute, kCommunication, kCycle, kMemory };
// "compute", "communication", "cycle", "memory".
const char* boundByName(BoundBy by);

// Seconds of a round, at least.
struct Bound {
  // The compute ops one after the other. While a collective runs they are slowed down, and to wait instead costs more:
  // of c seconds of collectives, c slowdown / (1 + slowdown) are lost.
  double compute = 0;
  // Transfers one after the other on their link, and the computation that can run beside none of them; see
  // OverlapBound.
  double communication = 0;
  double cycle = 0;  // the longest cycle through the step boundary, by the rounds that it spans
  // The largest of these with what a memory limit forces; without that they are told above. 0: no limit.
  double memory = 0;
  double seconds = 0;  // the largest of all
  BoundBy by = BoundBy::kCompute;
};

// `data`: what must precede what whatever the schedule; see dataDependences. Besides, the first stream, which computes,
// ends a round before it begins the next. `effect`: of a memory limit on the same ops; null: there is none.
Bound boundOf(const Loop& loop, std::span<const Dependence> data, const MemoryBound* effect = nullptr);

// The largest of (seconds of the ops) / (sum of distances) over the cycles of the dependences; 0 without a cycle.
double longestCycle(std::span<const Op> ops, std::span<const Dependence> dependences);

}  // namespace sheaf::schedule
