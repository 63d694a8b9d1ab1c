#include "tools/sheaf/Links.h"

#include <algorithm>
#include <cstdio>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "tools/options/Wrap.h"

namespace sheaf::tool {

using namespace schedule;

json::Value linksJson(const Links& links) {
  auto link = [](double seconds, uint64_t bytes, double bound) {
    return json::Object{{"seconds", seconds}, {"bytes", bytes}, {"bound_seconds", bound}};
  };
  return json::Object{{"node", link(links.nodeSeconds, links.use.nodeBytes, links.bound.nodeLink)},
                      {"network", link(links.networkSeconds, links.use.networkBytes, links.bound.network)},
                      {"bound_by", boundByName(links.bound.by)}};
}

Resources resourcesOf(const plan::Plan& plan, const Links& links, const PlanLoop& loop, const Timeline& timeline,
                      const profile::Profile& machine) {
  uint64_t moved[kUnits] = {};
  const std::vector<const plan::Instruction*> step = plan::stepInstructions(plan);
  for (size_t op = 0; op < loop.instructions.size(); ++op)
    if (const plan::Instruction& instruction = *step[static_cast<size_t>(loop.instructions[op])];
        instruction.has_transfer())
      moved[size_t(loop.loop.ops[op].unit)] += plan::sourceOf(instruction).bytes();
  Resources resources;
  const Bound& bound = links.bound;
  auto add = [&](BoundBy by, const char* name, double seconds, double least, uint64_t bytes) {
    if (seconds > 0) resources.used.push_back({by, name, seconds, least, bytes});
  };
  auto space = [&](BoundBy by, Unit unit, double least) {
    add(by, boundByName(by), timeline.unitSeconds[size_t(unit)], least, moved[size_t(unit)]);
  };
  add(BoundBy::kCompute, "compute", timeline.computeSeconds, bound.compute, 0);
  if (machine.nodes(machine.ranks()) > 1) {
    add(BoundBy::kNodeLink, "within nodes", links.nodeSeconds, bound.nodeLink, links.use.nodeBytes);
    add(BoundBy::kNetwork, "network", links.networkSeconds, bound.network, links.use.networkBytes);
  } else if (machine.ranks() > 1) {
    add(BoundBy::kCommunication, "between ranks", links.nodeSeconds, bound.nodeLink, links.use.nodeBytes);
  }
  space(BoundBy::kToDevice, Unit::kToDevice, bound.toDevice);
  space(BoundBy::kToHost, Unit::kToHost, bound.toHost);
  space(BoundBy::kFileIn, Unit::kFileIn, bound.fileIn);
  space(BoundBy::kFileOut, Unit::kFileOut, bound.fileOut);
  space(BoundBy::kHostCompute, Unit::kHostCompute, bound.hostCompute);
  uint64_t all = 0;
  for (uint64_t bytes : moved) all += bytes;
  add(BoundBy::kHostMemory, boundByName(BoundBy::kHostMemory), bound.hostMemory, bound.hostMemory, all);
  std::stable_sort(resources.used.begin(), resources.used.end(),
                   [](const Resource& a, const Resource& b) { return a.bound > b.bound; });
  return resources;
}

void printResources(const Resources& resources, const Bound& bound, double stepSeconds) {
  const Resource* binding = resources.binding();
  if (!binding) return;
  out::printf("\n%-18s %10s   part of the step   at least     by each rank\n", "resources", "seconds");
  for (const Resource& r : resources.used)
    out::printf("  %-16s %10s   %5.1f %%            %10s   %s\n", r.name, secondsText(r.seconds).c_str(),
                100 * r.seconds / stepSeconds, secondsText(r.bound).c_str(),
                r.bytes > 0 ? bytesText(r.bytes).c_str() : "");
  const bool other = bound.by == BoundBy::kCycle || bound.by == BoundBy::kMemory;
  std::string text = other ? cat("the bound is by ", boundByName(bound.by), "; ") : "";
  text += cat("bottleneck: ", binding->name);
  if (resources.used.size() > 1 && resources.used[1].bound > 0) {
    char times[32];
    std::snprintf(times, sizeof times, "%.2f", binding->bound / resources.used[1].bound);
    text += cat(" (", times, " times the next, ", resources.used[1].name, ")");
  }
  out::printf("%s\n", text.c_str());
}

json::Value resourcesJson(const Resources& resources) {
  json::Array list;
  for (const Resource& r : resources.used)
    list.push_back(
        json::Object{{"name", r.name}, {"seconds", r.seconds}, {"bound_seconds", r.bound}, {"bytes", r.bytes}});
  return list;
}

Wear wearOf(const plan::Plan& plan, const profile::Profile& machine, double stepSeconds) {
  Wear wear;
  for (const plan::Instruction* instruction : plan::stepInstructions(plan)) {
    if (instruction->has_transfer() && instruction->transfer().kind() == plan::Transfer::WRITE_FILE)
      wear.stepBytes += plan::sourceOf(*instruction).bytes();
    wear.persists |= instruction->has_persist();
  }
  if (wear.persists) wear.persistSeconds = machine.persistSeconds();
  wear.stepBytes *= static_cast<uint64_t>(std::min(machine.ranks(), machine.ranksPerNode()));
  constexpr double kDay = 86400;
  wear.dayBytes = static_cast<double>(wear.stepBytes) * kDay / stepSeconds;
  return wear;
}

void printWear(const Wear& wear) {
  if (wear.stepBytes == 0) return;
  out::printf(
      "\nA node writes %s to its disks in a step, %.3g TB a day: drives that are rated for one write of their capacity "
      "a day, for as long as their warranty says, must have %.3g TB together.\n",
      bytesText(wear.stepBytes).c_str(), wear.dayBytes / 1e12, wear.dayBytes / 1e12);
  if (wear.persists && !wear.persistSeconds)
    out::printf(
        "Each step is made durable, which counts as 0 s here: the profile has no \"persist\"; `sheaf profile --disk "
        "DIR` measures it.\n");
}

json::Value wearJson(const Wear& wear) {
  json::Object object{{"step_bytes", wear.stepBytes}, {"day_bytes", wear.dayBytes}};
  if (wear.persists)
    object.set("persist_seconds", wear.persistSeconds ? json::Value(*wear.persistSeconds) : json::Value());
  return object;
}

Baselines playBaselines(const plan::Plan& plan, const profile::Profile& machine, const StepModel& model,
                        const BaselineLimits& limits, bool spaces, double stepSeconds) {
  Baselines baselines;
  if (machine.ranks() == 1 && !spaces) return baselines;
  baselines.microBatches = plan::microBatches(plan) > 1;
  if (baselines.microBatches) return baselines;
  const BaselineStep step = baselineStepOf(plan, machine, model);
  if (step.compute.empty()) return baselines;
  baselines.tooShort = stepSeconds < kShortestCompared;
  if (baselines.tooShort) return baselines;
  for (Baseline baseline : baselinesFor(step, spaces))
    baselines.results.emplace_back(baselineName(baseline), playBaseline(step, baseline, limits));
  return baselines;
}

void printBaselines(const Baselines& baselines, double stepSeconds) {
  if (baselines.tooShort)
    out::printf(
        "\nother systems: not compared, since the step is below 1 ms (the time in which their hosts launch kernels is "
        "not modelled)\n");
  if (!baselines.results.empty())
    out::printf("\n%-18s %10s   relative to this plan (below 1: faster)   bytes\n", "baselines", "step");
  for (const auto& [name, baseline] : baselines.results) {
    char begin[80];
    const size_t indent = static_cast<size_t>(
        std::snprintf(begin, sizeof begin, "  %-16s %10s   ", name.c_str(), secondsText(baseline.seconds).c_str()));
    std::string row = begin;
    std::snprintf(begin, sizeof begin, "%5.2f                ", baseline.seconds / stepSeconds);
    row += cat(begin, bytesText(baseline.bytes),
               baseline.hostBytes > 0 ? cat(", ", bytesText(baseline.hostBytes), " in host memory") : "",
               baseline.fileBytes > 0 ? cat(", ", bytesText(baseline.fileBytes), " in files") : "",
               baseline.fits ? ": " : ", too many: ");
    const size_t column = row.size();
    options::wrap(row, baseline.knobs, column, indent);
    out::printf("%s", row.c_str());
  }
}

void setBaselines(json::Object& object, const Baselines& baselines) {
  json::Object results;
  for (const auto& [name, baseline] : baselines.results)
    results.set(name, json::Object{{"step_seconds", baseline.seconds},
                                   {"peak_bytes", baseline.bytes},
                                   {"host_bytes", baseline.hostBytes},
                                   {"file_bytes", baseline.fileBytes},
                                   {"fits", baseline.fits},
                                   {"knobs", baseline.knobs}});
  object.set("baselines", std::move(results));
  json::Value leftOut;
  if (baselines.tooShort) leftOut = "the step is below 1 ms";
  if (baselines.microBatches) leftOut = "other systems are not modelled for several micro-batches";
  object.set("baselines_left_out", std::move(leftOut));
}

}  // namespace sheaf::tool
