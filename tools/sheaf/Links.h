// What a predicted step does on the links of its machine, and what other systems would: in `sheaf simulate` and `fit`.
#pragma once

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
void printLinks(const Links& links, double stepSeconds);
json::Value linksJson(const Links& links);

// By name, with their best knobs.
using BaselineResults = std::vector<std::pair<std::string, schedule::BaselineResult>>;
// On machine.ranks() ranks under the limit, in bytes of a rank; empty on one rank, for several micro-batches and for
// plans with buffers in other spaces, for which they are not modelled. `model` is modelOf() the two.
BaselineResults playBaselines(const plan::Plan& plan, const profile::Profile& machine, const schedule::StepModel& model,
                              uint64_t limit);
void printBaselines(const BaselineResults& baselines, double stepSeconds);
json::Value baselinesJson(const BaselineResults& baselines);

}  // namespace sheaf::tool
