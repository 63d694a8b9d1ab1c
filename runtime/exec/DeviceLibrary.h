// Loads the device library that a plan runs on.
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"

namespace sheaf::exec {

// Loads a shared library, which is searched in the folders of SHEAF_LIBRARY_PATH, in ../lib next to the program, and on
// the system's library path; or `chosen`, if it is given. It stays loaded. The error is dlopen's.
Expected<void*> openLibrary(const std::string& name, const char* chosen = nullptr);

// Target "cpu" is libsheaf_cpu.so, "cuda" libsheaf_cuda.so.
Expected<Device*> loadDevice(const std::string& target);

}  // namespace sheaf::exec
