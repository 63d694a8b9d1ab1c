// Loads the device library that a plan runs on.
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"

namespace sheaf::exec {

// Target "cpu" is libsheaf_cpu.so, "cuda" libsheaf_cuda.so.
Expected<Device*> loadDevice(const std::string& target);

// Adds to a device's error that the plan must be compiled for this target, if it has kernels for the other one alone.
Status withTargets(const Status& error, const plan::Plan& plan, const std::string& target);

}  // namespace sheaf::exec
