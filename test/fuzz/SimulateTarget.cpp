#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "passes/schedule/Bound.h"
#include "passes/schedule/Floor.h"
#include "passes/schedule/PlanLoop.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Proof.h"
#include "runtime/plan/Verify.h"
#include "test/fuzz/Targets.h"

namespace sheaf::fuzz {
namespace {

// A step below its bound or floor, or one whose time is not a number, is a finding like a crash. A damaged plan may
// state padding that its kernels do not have, and so bytes that are free in the simulator, but not in the floor. If it
// lacks waits, an op starts before its data are there, earlier than the bound allows: only a proof excludes that.
void simulate(const plan::Plan& plan, const profile::Profile& machine, bool damaged) {
  schedule::PlanLoop loop = schedule::loopOf(plan, machine);
  schedule::Timeline timeline = schedule::play(loop.loop);
  schedule::Bound bound = schedule::boundOf(loop.loop, schedule::dataDependences(plan, loop));
  const schedule::Floor floor = schedule::floorOf(plan, machine).value_or(schedule::Floor());
  const bool floored = std::isfinite(floor.seconds) && floor.seconds >= 0 &&
                       (damaged || machine.ranks() != plan.ranks() || timeline.period >= floor.seconds * (1 - 1e-9));
  const bool bounded = timeline.period >= bound.seconds * (1 - 1e-9) || (damaged && !plan::provePlan(plan).ok());
  if (floored && bound.seconds >= 0 && bounded && std::isfinite(timeline.period)) return;
  std::fprintf(stderr, "a step of %g s with a bound of %g s and a floor of %g s\n", timeline.period, bound.seconds,
               floor.seconds);
  std::abort();
}

}  // namespace

Target simulateTarget(const std::string& corpus) {
  auto profiles = std::make_shared<std::vector<Seed>>(readSeeds(corpus + "/profile"));
  auto plans = std::make_shared<std::vector<Seed>>(readSeeds(corpus + "/plan"));
  return {"simulate", 4, [=](Random& random) {
            const Seed& seed = (*profiles)[random.below(profiles->size())];
            const std::string& file = (*plans)[random.below(plans->size())].bytes;
            const bool damagePlan = random.oneIn(2);
            Expected<profile::Profile> machine =
                profile::Profile::parse(damagePlan ? seed.bytes : mutateText(seed.bytes, random), seed.path);
            if (!machine.ok()) return;
            plan::Plan plan;
            const std::string payload = file.substr(plan::kPlanHeaderBytes);
            if (!plan.ParseFromString(damagePlan ? mutateWire(payload, random) : payload)) return;
            if (!plan::verifyPlan(plan).ok()) return;
            for (int64_t ranks : {plan.ranks(), int64_t{1}, int64_t{64}})
              if (Expected<profile::Profile> other = machine->withRanks(ranks); other.ok())
                simulate(plan, *other, damagePlan);
            (void)profile::Profile::parse(json::write(machine->toJson()), seed.path);
          }};
}

}  // namespace sheaf::fuzz
