#include "runtime/exec/LoadedLibrary.h"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
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

// The table of an ELF file's sections stands at its end. dlopen maps a file that is cut off, and dies on its first
// access to what is missing.
bool isCutOff(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return false;
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  return !error && header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize > size;
}

Expected<void*> functionOf(const std::string& path, const char* symbol) {
  if (isCutOff(path)) return Status::error(path + " is cut off: install it again");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return Status::error(dlerror());
  std::string why;
  auto version = reinterpret_cast<const char* (*)()>(dlsym(library, "sheaf_library_version"));
  if (!version)
    why = cat(path, " is not a library of sheaf ", SHEAF_VERSION, ", the version of this program");
  else if (std::string_view(version()) != SHEAF_VERSION)
    why = cat(path, " is of sheaf ", version(), ", and this program is of ", SHEAF_VERSION);
  else if (void* function = dlsym(library, symbol))
    return function;
  else
    why = cat(path, " is another library: it does not export ", symbol);
  // It stays loaded: memory that its initializers allocated would be lost without it.
  return Status::error(why + "; install libraries and programs together");
}

}  // namespace

Expected<void*> loadFunction(const std::string& name, const char* symbol, const char* chosen) {
  if (chosen) return functionOf(chosen, symbol);
  Status first;
  for (const std::string& path : candidates(name)) {
    const bool isFile = path.find('/') != std::string::npos;
    if (isFile && access(path.c_str(), F_OK) != 0) continue;
    Expected<void*> function = functionOf(path, symbol);
    if (function.ok()) return function;
    if (first.ok()) first = function.status();  // an error of a file that exists, if there is one
  }
  return first;
}

}  // namespace sheaf::exec
