// The values that change from step to step: see plan.proto's StepScalar for their kinds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::exec {

// Of the step with this 0-based number: linear from 0 to the full rate over `warmup` steps (step 0 has 1/warmup of it),
// then constant, or along half a cosine to `min` times the rate at step `steps` and later.
double learningRate(const plan::Training& training, int64_t step);

// Plan.scalars in order, computed in f64 and rounded to f32. `update` is the 1-based number of the update: it differs
// from the step's where steps were skipped.
std::vector<float> stepScalars(const plan::Plan& plan, double learningRate, int64_t update);

// "constant", "constant:warmup=10", "cosine:warmup=100,steps=1000,min=0.1"
Expected<plan::Schedule> parseSchedule(const std::string& text);

}  // namespace sheaf::exec
