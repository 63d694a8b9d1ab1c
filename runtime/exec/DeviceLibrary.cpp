#include "runtime/exec/DeviceLibrary.h"

#include <cstdlib>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/exec/LoadedLibrary.h"
#include "runtime/plan/Types.h"

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

Status withTargets(const Status& error, const plan::Plan& plan, const std::string& target) {
  if (error.message().find("--target") != std::string::npos) return error;
  std::set<std::string> devices;
  for (const plan::KernelImage& image : plan.images()) devices.insert(plan::deviceOf(image));
  if (devices.empty() || devices.contains(target)) return error;
  return Status::error(cat(error.message(), "; the plan has kernels for ", *devices.begin(),
                           " alone: compile it with --target ", target == "cpu" ? "cpu" : "cuda:sm_NN"));
}

}  // namespace sheaf::exec
