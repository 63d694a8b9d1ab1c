// A step for the scheduler: instructions as nodes with durations, the dependences between them, and the buffers that
// they keep alive.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/schedule/Timeline.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

inline constexpr uint32_t kNone = ~uint32_t{0};

// An access of a node to a buffer. Read and write counts as a write.
struct Access {
  uint32_t buffer = 0;
  uint64_t begin = 0, end = 0;  // bytes of the buffer, on rank 0
  plan::RankStrides strides;    // added for each further rank of a node, and for each further node
  uint64_t reach = 0;           // the most that is added
  bool write = false;
};

struct Node {
  enum class Kind : uint8_t {
    kCompute,         // computation; also the host's inputs and outputs
    kGather,          // all-gather of parameters into a buffer that is not persistent
                      // or a transfer into one, to the device or from a file
    kReduce,          // reduction of a gradient
    kOther,           // any other collective: of updated parameters, the norm, the loss; an update on the host
    kAfterReduction,  // computation that depends on a reduction of the same round: norms, updates
    kStore,           // transfer from the device, or to a file
  };
  Kind kind = Kind::kCompute;
  Unit unit = Unit::kCompute;
  uint32_t stream = 0;
  uint32_t instruction = 0;  // in plan::stepInstructions()
  double seconds = 0;
  double hostLoad = 0;  // see Op
  std::vector<Access> accesses;
};

struct Storage {
  uint64_t bytes = 0;
  bool persistent = false;
  bool onDevice = true;  // counts under the memory limit
};

struct StepModel {
  std::vector<Node> nodes;              // in the order of the step, without records and waits
  std::vector<Dependence> dependences;  // between nodes with conflicting accesses, sorted by `to`; distance 0 or 1
  std::vector<Storage> buffers;
  double slowdown = 0;  // see Loop
  std::optional<double> networkSlowdown;
  double copySlowdown = 0, fileSlowdown = 0;

  // What its nodes cost, without dependences.
  Loop costs() const;
};

// An order in which the body issues its instructions.
struct Order {
  std::vector<uint32_t> nodes;
  // Gathers that this body issues for the next round; those of the first round stand in the prologue.
  std::vector<bool> carried;  // by node
};

// The model of a plan's step on profile.ranks() ranks. The plan comes from the compiler, with or without records and
// waits, or has passed plan::verifyPlan.
StepModel modelOf(const plan::Plan& plan, const profile::Profile& profile);

// The order of the body as it is.
Order orderOf(const StepModel& model);

// The loop of a body that is issued in that order. Each gather waits for the computation that is issued before it, so
// that it does not start earlier than scheduled. Once a second store of a stream has been issued, computation and
// transfers to the device that are issued next wait for the first one: then its bytes are free.
Loop loopOf(const StepModel& model, const Order& order);

// Whether the order has every node once and respects the dependences.
bool respects(const StepModel& model, const Order& order);

// A lower bound on the arena of one rank, in bytes, if the body is issued in that order: the largest sum of live
// buffers. Persistent buffers always live, others from their first access to the first computation that is ordered
// after the last.
uint64_t liveBytes(const StepModel& model, const Order& order);

}  // namespace sheaf::schedule
