// What the page of `sheaf report` shows, as JSON: tables by column, so that a plan of 100,000 instructions stays small.
// tools/report/data.js reads it, and docs/report.md describes it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/profile/Profile.h"
#include "tools/sheaf/MeasuredStep.h"
#include "tools/sheaf/Simulation.h"

namespace sheaf::tool {

struct ReportInput {
  const plan::Plan& plan;
  const profile::Profile& machine;
  const Simulation& simulation;
  std::optional<MeasuredStep> measured;
  std::vector<Difference> differences;  // of the measured step
  bool hasGraph = false;                // the plan's file has a graph
};

// Times are nanoseconds from the begin of the step, sizes bytes.
json::Value reportData(const ReportInput& input);

}  // namespace sheaf::tool
