// Files that a command writes: none may replace one that it reads, and a name must not say another format.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf {

// A file, and the option or the thing that names it: "--save", "the plan".
struct NamedFile {
  std::string name, path;
};

// Returns the absolute path without links, also of a file that does not exist yet; empty if it cannot be found out.
std::filesystem::path canonicalPath(const std::filesystem::path& path);

// Refuses an output that is one of the inputs, by whatever path or link, and two outputs that are one file. Devices,
// such as /dev/null, may be named twice.
Status checkOutputPaths(std::span<const NamedFile> outputs, std::span<const NamedFile> inputs);

// Refuses a path whose ending says another format than `endings`, without dots ("safetensors"), do. Takes any path if
// there are none, and endings that say no format.
Status checkOutputEnding(const NamedFile& output, std::span<const std::string> endings);

}  // namespace sheaf
