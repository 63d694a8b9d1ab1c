#include "tools/sheaf/Simulation.h"

#include <cmath>

namespace sheaf::tool {

using namespace schedule;

Expected<Simulation> simulate(const plan::Plan& plan, const profile::Profile& machine, uint64_t limit) {
  Simulation result;
  SHEAF_RETURN_IF_ERROR(checkCosts(plan, machine));
  result.loop = loopOf(plan, machine);
  const PlanLoop& loop = result.loop;
  result.timeline = play(loop.loop);
  if (!std::isfinite(result.timeline.period))
    return Status::error("the plan's instructions wait for each other and never end; `sheaf verify` says which");
  result.peak = peakBytes(plan, machine.ranks());
  result.limit = limit ? limit : machine.memoryBytes();
  result.model = modelOf(plan, machine);
  const std::vector<Dependence> data = dataDependences(plan, loop);
  // What a limit forces is known of the plan's own number of ranks, whose bytes it has.
  const bool limited = result.peak <= result.limit && machine.ranks() == plan.ranks();
  const MemoryBound memory = limited ? memoryBoundOf(result.model, data, result.limit) : MemoryBound{};
  result.bound = boundOf(loop.loop, data, limited ? &memory : nullptr);
  result.floor = floorOf(plan, machine);
  result.links = {linkUseOf(plan, loop, machine), result.timeline.nodeLinkSeconds, result.timeline.networkSeconds,
                  result.bound};
  result.live = liveBytes(result.model, orderOf(result.model));
  return result;
}

}  // namespace sheaf::tool
