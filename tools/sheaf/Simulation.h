// A plan's step played on a machine, with its bounds: what `sheaf simulate` and `sheaf report` show.
#pragma once

#include <cstdint>
#include <optional>

#include "passes/schedule/Bound.h"
#include "passes/schedule/Floor.h"
#include "passes/schedule/PlanLoop.h"
#include "passes/schedule/StepModel.h"
#include "runtime/base/Status.h"
#include "tools/sheaf/Links.h"

namespace sheaf::tool {

struct Simulation {
  schedule::PlanLoop loop;
  schedule::Timeline timeline;
  schedule::Bound bound;
  std::optional<schedule::Floor> floor;
  uint64_t peak = 0, limit = 0, live = 0;  // bytes of a rank
  Links links;
  schedule::StepModel model;

  // By how much the step takes longer than the bound, as a part of the bound.
  double gap() const { return bound.seconds > 0 ? timeline.period / bound.seconds - 1 : 0; }
};

// The step on machine.ranks() ranks. `limit`: bytes of a rank's memory; 0: the machine's. An error says that the plan's
// instructions never end.
Expected<Simulation> simulate(const plan::Plan& plan, const profile::Profile& machine, uint64_t limit);

}  // namespace sheaf::tool
