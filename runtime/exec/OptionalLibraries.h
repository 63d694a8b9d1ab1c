// Loads libraries of the runtime that few runs need.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/measure/Measurement.h"
#include "runtime/plan/Same.h"

namespace sheaf::exec {

// For --measure: libsheaf_measure.so.
Expected<measure::MeasureProfile> loadMeasure();

// For a run that is given several plans: libsheaf_same.so.
Expected<plan::ComparePlans> loadComparison();

}  // namespace sheaf::exec
