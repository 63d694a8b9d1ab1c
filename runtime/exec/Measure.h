// Measuring a device for the simulator: what `sheaf-run --measure` does with a probe, and what `sheaf profile` shares
// with it.
#pragma once

#include <atomic>
#include <string>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Status.h"
#include "runtime/exec/Run.h"
#include "runtime/measure/Measurement.h"

namespace sheaf::exec {

// What is known of this machine without measuring it; its kernels are missing. The profile has the file's name.
measure::MeasureOptions thisMachine(const std::string& file);

// The profile's text into the file.
Status writeProfile(const profile::Profile& profile, AtomicFile& file);

// Measures with the probe options.plan and writes the profile options.measure. What a launcher says in the environment
// makes it one process's part of a job.
Status measure(const RunOptions& options, const std::atomic<bool>& interrupted);

}  // namespace sheaf::exec
