// The kernels that `sheaf profile` measures: fusions of training steps, compiled for this processor.
#pragma once

#include "runtime/schedule/Measurement.h"

namespace sheaf::tool {

// Sets options.kernels and options.samples. An error has been printed if it returns false.
bool compileSampleKernels(schedule::MeasureOptions& options);

}  // namespace sheaf::tool
