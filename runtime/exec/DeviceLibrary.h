// Loads the device library that a plan runs on.
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"

namespace sheaf::exec {

// Target "cpu" is libsheaf_cpu.so, "cuda" libsheaf_cuda.so. It is searched in the folders of SHEAF_LIBRARY_PATH, in
// ../lib next to the program, and on the system's library path. It stays loaded.
Expected<Device*> loadDevice(const std::string& target);

}  // namespace sheaf::exec
