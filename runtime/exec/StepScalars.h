// The values that change from step to step: see plan.proto's StepScalar for their kinds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

// Of each group at the step with this 0-based number: its own learning rate, or that of the training, times the
// schedule's factor. One rate where there are no groups.
std::vector<double> learningRates(const plan::Training& training, int64_t step);

// Plan.scalars in order, computed in f64 and rounded to f32. `rates` are those of the groups; `update` is the 1-based
// number of the update: it differs from the step's where steps were skipped.
std::vector<float> stepScalars(const plan::Plan& plan, std::span<const double> rates, int64_t update);

}  // namespace sheaf::exec
