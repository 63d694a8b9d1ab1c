// A training step as a system without a whole-step compiler sees it: computation in autograd's order, and parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/StepModel.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

// Computations are named by their index in BaselineStep::compute.
struct BaselineParameter {
  uint32_t block = kNone;  // the transformer block it belongs to; kNone: none (embeddings, last norm, head)
  uint32_t module = 0;     // the innermost module it belongs to
  uint64_t elements = 0;
  uint64_t bytes = 0;                 // as computation reads it
  uint64_t gradientBytes = 0;         // as it is reduced over ranks; 0: frozen
  std::vector<uint32_t> uses;         // computations that read it, increasing
  uint32_t firstGradient = kNone;     // the computation that first writes its gradient; kNone: frozen
  uint32_t gradientComplete = kNone;  // the computation after which its gradient is complete
};

// A transfer between spaces.
struct BaselineMove {
  double seconds = 0;
  double hostLoad = 0;  // see Op
};

struct BaselineStep {
  std::vector<double> compute;                // seconds, forward and backward pass
  std::vector<uint64_t> liveBytes;            // activations and scratch that are alive during each
  uint32_t backward = 0;                      // the first computation of the backward pass
  std::vector<BaselineParameter> parameters;  // in the order of first use
  int64_t ranks = 1;
  int64_t ranksPerNode = plan::kMaxRanks;  // of the machine
  double slowdown = 0;                     // see Loop
  std::optional<double> networkSlowdown;
  double updateSecondsPerElement = 0;  // of a parameter's element, on the rank that updates it
  uint64_t optimizerBytes = 0;         // optimizer state and f32 master weights, of all ranks together
  uint64_t otherBytes = 0;             // kept from step to step besides parameters, gradients and optimizer state
  bool clips = false;                  // whether the updates need the global norm of the gradients
  std::function<double(const profile::Transfer&)> transferSeconds;
  // Of transfers between spaces by a rank while all move as much; absent if the machine's profile does not know them,
  // or not at which rate its processors update.
  std::function<BaselineMove(plan::Transfer::Kind, uint64_t bytes)> move;
  double hostUpdates = 0;     // elements a second that a rank's part of the node's processors updates
  double hostUpdateLoad = 0;  // part of the host memory's bandwidth that all ranks' updates use
};

// Whether the ranks are on several nodes, as many on each.
bool hasNodes(const BaselineStep& step);

// A collective on the step's machine.
struct BaselineTransfer {
  double seconds = 0;
  Unit unit = Unit::kLink;
};
BaselineTransfer transferOf(const BaselineStep& step, const profile::Transfer& transfer);

// The step of a plan on machine.ranks() ranks: its computation, recomputation included, with weight gradients as early
// as their operands exist, which is when autograd computes them. `model` is modelOf() the two. The result refers to
// `machine`.
BaselineStep baselineStepOf(const plan::Plan& plan, const profile::Profile& machine, const StepModel& model);

}  // namespace sheaf::schedule
