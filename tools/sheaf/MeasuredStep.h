// A measured step next to a predicted one: what `sheaf-run --trace` wrote, by instruction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/schedule/PlanLoop.h"
#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::tool {

// Medians over the traced steps of one rank, in seconds from the step's first begin.
struct MeasuredStep {
  int64_t rank = 0, steps = 0;
  double period = 0;               // from one step's begin to the next one's; of one step its length
  std::vector<double> begin, end;  // by op; an op that was not traced begins and ends at -1
};

// Reads Chrome's trace events. Of several ranks the first is taken, and of several steps not the first, which warms up.
// An error names the file, and the event that is not of this plan.
Expected<MeasuredStep> readMeasuredStep(const std::string& path, const plan::Plan& plan,
                                        const schedule::PlanLoop& loop);

// The ops whose measured seconds differ most from the predicted ones, the largest difference first.
struct Difference {
  uint32_t op = 0;
  double predicted = 0, measured = 0;  // seconds
};
std::vector<Difference> largestDifferences(const MeasuredStep& measured, const schedule::Timeline& predicted,
                                           size_t most);

}  // namespace sheaf::tool
