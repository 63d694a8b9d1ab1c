// Measures a device for the simulator: `sheaf-run --measure`, and the parts that `sheaf profile` shares with it.
#pragma once

#include <atomic>
#include <string>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Status.h"
#include "runtime/exec/Run.h"
#include "runtime/measure/Measurement.h"

namespace sheaf::exec {

// Options filled with the facts of this machine, without kernels. The profile is named after the file.
measure::MeasureOptions thisMachine(const std::string& file);

// Writes a profile's text.
Status writeProfile(const std::string& profile, AtomicFile& file);

// Measures with the probe plan options.plan and writes the profile options.measure. Under a launcher, all processes of
// the job measure together.
Status measure(const RunOptions& options, RunControl& control);

}  // namespace sheaf::exec
