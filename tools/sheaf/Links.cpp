#include "tools/sheaf/Links.h"

#include <cstdio>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

namespace sheaf::tool {

using namespace schedule;

void printLinks(const Links& links, double stepSeconds) {
  std::printf("\n%-18s %10s   part of the step   sent by a rank\n", "links", "seconds");
  auto row = [&](const char* name, double seconds, uint64_t bytes, BoundBy by) {
    std::printf("  %-16s %10s   %5.1f %%            %s%s\n", name, secondsText(seconds).c_str(),
                100 * seconds / stepSeconds, bytesText(bytes).c_str(),
                links.bound.by == by ? ", which bounds the step" : "");
  };
  row("within nodes", links.nodeSeconds, links.use.nodeBytes, BoundBy::kNodeLink);
  row("network", links.networkSeconds, links.use.networkBytes, BoundBy::kNetwork);
}

json::Value linksJson(const Links& links) {
  auto link = [](double seconds, uint64_t bytes, double bound) {
    return json::Object{{"seconds", seconds}, {"bytes", bytes}, {"bound_seconds", bound}};
  };
  return json::Object{{"node", link(links.nodeSeconds, links.use.nodeBytes, links.bound.nodeLink)},
                      {"network", link(links.networkSeconds, links.use.networkBytes, links.bound.network)},
                      {"bound_by", boundByName(links.bound.by)}};
}

BaselineResults playBaselines(const plan::Plan& plan, const profile::Profile& machine, const StepModel& model,
                              uint64_t limit) {
  BaselineResults results;
  if (machine.ranks() == 1 || plan::microBatches(plan) > 1) return results;
  for (const plan::Buffer& buffer : plan.buffers())
    if (buffer.space() != plan::Buffer::DEVICE) return results;
  const BaselineStep step = baselineStepOf(plan, machine, model);
  if (step.compute.empty()) return results;
  for (Baseline baseline : baselinesFor(step))
    results.emplace_back(baselineName(baseline), playBaseline(step, baseline, limit));
  return results;
}

void printBaselines(const BaselineResults& baselines, double stepSeconds) {
  if (!baselines.empty()) std::printf("\n%-18s %10s   times our step (below 1: faster)   bytes\n", "baselines", "step");
  for (const auto& [name, baseline] : baselines)
    std::printf("  %-16s %10s   %5.2f          %s%s: %s\n", name.c_str(), secondsText(baseline.seconds).c_str(),
                baseline.seconds / stepSeconds, bytesText(baseline.bytes).c_str(), baseline.fits ? "" : ", too many",
                baseline.knobs.c_str());
}

json::Value baselinesJson(const BaselineResults& baselines) {
  json::Object object;
  for (const auto& [name, baseline] : baselines)
    object.set(name, json::Object{{"step_seconds", baseline.seconds},
                                  {"peak_bytes", baseline.bytes},
                                  {"fits", baseline.fits},
                                  {"knobs", baseline.knobs}});
  return object;
}

}  // namespace sheaf::tool
