// Lower bounds on the period of a loop, whatever the order of its ops.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "passes/schedule/MemoryBound.h"
#include "passes/schedule/Timeline.h"

namespace sheaf::schedule {

// kCommunication where there is one link; where some transfers are within nodes only or between them only, kNodeLink or
// kNetwork.
// kToDevice to kFileOut: transfers of that kind; kHostCompute: updates on the host; kHostMemory: what all of them move
// there.
enum class BoundBy {
  kCompute,
  kCommunication,
  kNodeLink,
  kNetwork,
  kCycle,
  kMemory,
  kToDevice,
  kToHost,
  kFileIn,
  kFileOut,
  kHostCompute,
  kHostMemory
};
// "compute", "communication", "node link", "network", "cycle", "memory", "to_device", ..., "host compute",
// "host memory".
const char* boundByName(BoundBy by);

// Seconds of a round.
struct Bound {
  // The sum of the compute ops, and what c seconds of collectives take from them: c slowdown / (1 + slowdown) if they
  // overlap with computation, c otherwise.
  double compute = 0;
  // For each link: the sum of the transfers that occupy it, and of computation that cannot overlap with them; see
  // OverlapBound.
  double nodeLink = 0, network = 0;
  double communication = 0;  // the larger one
  // Of transfers between spaces and updates on the host: for each unit the same as for a link, and what they take of
  // the host's memory.
  double toDevice = 0, toHost = 0, fileIn = 0, fileOut = 0, hostCompute = 0, hostMemory = 0;
  double cycle = 0;               // the longest cycle through the step boundary, per round that it spans
  std::vector<uint32_t> onCycle;  // its ops, by their places in Loop.ops
  // The largest of these terms under a memory limit; the ones above are without it. 0: no limit.
  double memory = 0;
  double seconds = 0;  // the largest of all
  BoundBy by = BoundBy::kCompute;
};

// `data`: dependences that every schedule respects; see dataDependences. Besides, stream 0 finishes a round before it
// begins the next. `memory`: what a memory limit forces on the same ops; null: no limit.
Bound boundOf(const Loop& loop, std::span<const Dependence> data, const MemoryBound* memory = nullptr);

// The largest ratio of seconds to distance over the cycles of the dependences (maximum cycle ratio); 0 without a cycle.
// `on`: receives the ops of such a cycle, in no order.
double longestCycle(std::span<const Op> ops, std::span<const Dependence> dependences,
                    std::vector<uint32_t>* on = nullptr);

}  // namespace sheaf::schedule
