// A step as a system without a compiler sees it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "passes/schedule/StepModel.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

// Parameters that travel together.
struct BaselineGroup {
  // Computation that reads them, as ranges [first, last] of BaselineStep::compute; between them they may be dropped.
  std::vector<std::pair<uint32_t, uint32_t>> uses;
  uint32_t gradient = kNone;  // the computation after which their gradient is complete; kNone: frozen
  double gatherSeconds = 0, reduceSeconds = 0, updateSeconds = 0;
  uint64_t gatheredBytes = 0, gradientBytes = 0;  // whole
  uint32_t firstGradient = kNone;                 // the computation that writes the first of it
};

// Computation in its order, and groups of parameters.
struct BaselineStep {
  std::vector<double> compute;      // seconds
  std::vector<uint64_t> liveBytes;  // activations and scratch that are alive during each computation
  uint64_t stateBytes = 0;          // of a rank between steps: shards of parameters, gradients, optimizer state
  std::vector<BaselineGroup> groups;
  uint32_t backward = 0;  // the first computation of the backward pass
  double slowdown = 0;
  double scalarSeconds = 0;  // collectives of the loss and the norm, before the updates
};

// The step of a plan on profile.ranks() ranks under ZeRO-3: its computation, recomputation included, with a group for
// each transformer block and one for the rest. `model` is modelOf() the two.
BaselineStep baselineStepOf(const plan::Plan& plan, const profile::Profile& profile, const StepModel& model);

}  // namespace sheaf::schedule
