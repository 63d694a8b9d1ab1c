// Device libraries, loaded when a plan is to run on them.
#pragma once

#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"

namespace sheaf::exec {

// "cpu": libsheaf_cpu.so, searched in the folders of SHEAF_LIBRARY_PATH, in ../lib beside the program, then where the
// system looks. It stays loaded.
Expected<Device*> loadDevice(const std::string& target);

}  // namespace sheaf::exec
