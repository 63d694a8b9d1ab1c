// What a scheduler may and may not do with a step: its instructions as nodes with durations, the order that their data
// demand, and the bytes that they keep alive.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/schedule/Timeline.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

inline constexpr uint32_t kNone = ~uint32_t{0};

// A use of a buffer by a node. Where it reads and writes, it counts as a write.
struct Access {
  uint32_t buffer = 0;
  uint64_t begin = 0, end = 0;  // bytes of the buffer, of all ranks
  uint64_t stride = 0;          // between ranks
  bool write = false;
};

struct Node {
  enum class Kind : uint8_t {
    kCompute,    // computation, and what the host reads and writes
    kGather,     // of parameters, into a buffer that does not outlive the step
    kReduce,     // of a gradient
    kOther,      // any other collective: updated parameters, the norm, the loss
    kAftermath,  // computation that needs a reduction: norms, updates
  };
  Kind kind = Kind::kCompute;
  Unit unit = Unit::kCompute;
  uint32_t stream = 0;
  uint32_t instruction = 0;  // in the plan's body
  double seconds = 0;
  std::vector<Access> accesses;
};

struct Storage {
  uint64_t bytes = 0;
  bool persistent = false;
};

struct StepModel {
  std::vector<Node> nodes;              // in the order of the body; records and waits are left out
  std::vector<Dependence> dependences;  // of nodes, by the bytes they access; within a round and from the round before
  std::vector<Storage> buffers;
  double slowdown = 0;  // of computation while a collective runs: see Loop
};

// An order in which the body issues its instructions.
struct Order {
  std::vector<uint32_t> nodes;
  // Gathers that belong to the next round: they stand at the end of a body and, for the first round, in the prologue.
  std::vector<bool> carried;  // by node
};

// The model of a plan's body, which may lack waits and records, on profile.ranks() ranks. The plan must otherwise have
// passed plan::verifyPlan or come from the compiler.
StepModel modelOf(const plan::Plan& plan, const profile::Profile& profile);

// The order in which the body stands now.
Order orderOf(const StepModel& model);

// What runs if the body is issued in that order: streams, dependences, and each gather's wait for the computation that
// is issued before it, which keeps it from running further ahead than it was scheduled.
Loop loopOf(const StepModel& model, const Order& order);

// Whether the order has every node once and respects all dependences.
bool respects(const StepModel& model, const Order& order);

// The largest sum of bytes alive at once on one rank if the body is issued in that order: persistent buffers, and each
// other buffer from its first access to the instruction by which the compute stream knows that its last one is over. No
// layout of the arena is smaller.
uint64_t liveBytes(const StepModel& model, const Order& order);

}  // namespace sheaf::schedule
