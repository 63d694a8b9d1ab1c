// Loads functions from libraries of the runtime that few runs need.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/measure/Measurement.h"
#include "runtime/plan/Same.h"

namespace sheaf::exec {

// Returns measure::measureProfile of libsheaf_measure.so, for --measure.
Expected<measure::MeasureProfile> loadMeasureProfile();

// Returns plan::comparePlans of libsheaf_same.so, for a run that is given several plans.
Expected<plan::ComparePlans> loadComparePlans();

}  // namespace sheaf::exec
