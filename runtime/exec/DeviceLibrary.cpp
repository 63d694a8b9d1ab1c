#include "runtime/exec/DeviceLibrary.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Text.h"

namespace sheaf::exec {
namespace {

std::vector<std::string> candidates(const std::string& name) {
  std::vector<std::string> paths;
  if (const char* folders = std::getenv("SHEAF_LIBRARY_PATH")) {
    std::istringstream list(folders);
    for (std::string folder; std::getline(list, folder, ':');)
      if (!folder.empty()) paths.push_back(folder + "/" + name);
  }
  char program[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program);
  if (length > 0) paths.push_back(folderOf(std::string(program, static_cast<size_t>(length))) + "/../lib/" + name);
  paths.push_back(name);
  return paths;
}

}  // namespace

Expected<void*> openLibrary(const std::string& name, const char* chosen) {
  std::string why;
  std::vector<std::string> paths = candidates(name);
  if (chosen) paths.assign(1, chosen);
  for (const std::string& path : paths) {
    if (!chosen && path.find('/') != std::string::npos && access(path.c_str(), F_OK) != 0) continue;
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (why.empty()) why = dlerror();  // of one that is there, rather than that the last one is not
  }
  return Status::error(why);
}

Expected<Device*> loadDevice(const std::string& target) {
  std::string name = "libsheaf_" + target + ".so";
  // Tests substitute the CUDA library by one that emulates CUDA on the CPU.
  const char* chosen = target == "cuda" ? std::getenv("SHEAF_CUDA_LIBRARY") : nullptr;
  Expected<void*> library = openLibrary(name, chosen);
  if (!library.ok())
    return Status::error(cat("cannot load the device library for '", target, "': ", library.status().message(),
                             "; SHEAF_LIBRARY_PATH names the folder that has ", name));
  auto open = reinterpret_cast<OpenDevice>(dlsym(*library, "sheaf_open_device"));
  if (!open) return Status::error(cat(name, " is not a device library: it does not export sheaf_open_device"));
  return open();
}

}  // namespace sheaf::exec
