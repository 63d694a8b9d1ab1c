// What a predicted step does on the links of its machine, and what other systems would: in `sheaf simulate` and `fit`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "passes/schedule/Baselines.h"
#include "passes/schedule/Bound.h"
#include "passes/schedule/PlanLoop.h"
#include "runtime/base/Json.h"

namespace sheaf::tool {

// How long collectives occupy each link, how much a rank sends over it, and what bounds the step.
struct Links {
  schedule::LinkUse use;
  double nodeSeconds = 0, networkSeconds = 0;
  schedule::Bound bound;
};
json::Value linksJson(const Links& links);

// What a step's instructions occupy: the processors, a link between ranks, one between spaces, or the host's memory.
struct Resource {
  schedule::BoundBy by = schedule::BoundBy::kCompute;
  const char* name = "";
  double seconds = 0;  // that a step occupies it
  double bound = 0;    // that any order of these instructions takes for its sake
  uint64_t bytes = 0;  // that a rank sends or moves over it; 0 for computation
};

// Those that the step uses, by the terms of the bound, the largest first.
struct Resources {
  std::vector<Resource> used;
  const Resource* binding() const { return used.empty() ? nullptr : &used.front(); }
};
// `links` are those of the step on the machine.
Resources resourcesOf(const plan::Plan& plan, const Links& links, const schedule::PlanLoop& loop,
                      const schedule::Timeline& timeline, const profile::Profile& machine);
void printResources(const Resources& resources, const schedule::Bound& bound, double stepSeconds);
json::Value resourcesJson(const Resources& resources);

// What a step, and a day of such steps, writes to the disks of a node.
struct Wear {
  uint64_t stepBytes = 0;  // of all ranks of a node
  double dayBytes = 0;
  bool persists = false;                 // each step is made durable
  std::optional<double> persistSeconds;  // what that takes, if the profile says it
};
// Nothing is written if stepBytes is 0.
Wear wearOf(const plan::Plan& plan, const profile::Profile& machine, double stepSeconds);
void printWear(const Wear& wear);
json::Value wearJson(const Wear& wear);

// Other systems are not compared with a shorter step, in seconds: it may take less than their hosts need to launch its
// kernels, and that time is not modelled.
constexpr double kShortestCompared = 1e-3;

// Other systems' steps by name, with their best knobs.
struct Baselines {
  std::vector<std::pair<std::string, schedule::BaselineResult>> results;
  bool tooShort = false;      // there are no results because our step is shorter than kShortestCompared
  bool microBatches = false;  // there are none because our step has several
};
// Plays them on machine.ranks() ranks under the limits, in bytes per rank. There are none for several micro-batches,
// for which they are not modelled, and on one rank unless there are other spaces: then those that offload are played as
// well. `model` is modelOf() the two, `stepSeconds` our step with which the results will be compared.
Baselines playBaselines(const plan::Plan& plan, const profile::Profile& machine, const schedule::StepModel& model,
                        const schedule::BaselineLimits& limits, bool spaces, double stepSeconds);
void printBaselines(const Baselines& baselines, double stepSeconds);
// Sets "baselines", and "baselines_left_out": why there are none where there could be some, or null.
void setBaselines(json::Object& object, const Baselines& baselines);

}  // namespace sheaf::tool
