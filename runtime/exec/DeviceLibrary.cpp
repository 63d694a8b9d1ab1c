#include "runtime/exec/DeviceLibrary.h"

#include <cstdlib>

#include "runtime/base/Text.h"
#include "runtime/exec/LoadedLibrary.h"

namespace sheaf::exec {

Expected<Device*> loadDevice(const std::string& target) {
  std::string name = "libsheaf_" + target + ".so";
  // Tests substitute the CUDA library by one that emulates CUDA on the CPU.
  const char* chosen = target == "cuda" ? std::getenv("SHEAF_CUDA_LIBRARY") : nullptr;
  Expected<void*> open = loadFunction(name, "sheaf_open_device", chosen);
  if (!open.ok())
    return Status::error(cat("cannot load the device library for '", target, "': ", open.status().message(),
                             "; SHEAF_LIBRARY_PATH names the folder that has ", name));
  return reinterpret_cast<OpenDevice>(*open)();
}

}  // namespace sheaf::exec
