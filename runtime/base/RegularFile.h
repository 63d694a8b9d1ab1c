// Opening files whose paths come from a user or from another file: they may be anything that has a path.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/Status.h"

namespace sheaf {

struct OpenFile {
  int descriptor = -1;  // the caller closes it
  uint64_t size = 0;
};

// Opens a regular file for reading. A pipe, a device, a socket or a folder is an error that says so, and is not opened:
// to open one may wait for ever, or act on a device.
Expected<OpenFile> openRegularFile(const std::string& path);

// Raises the limit of open files (`ulimit -n`) as far as the process may, and returns it; 0 if it is not known.
uint64_t allowMostOpenFiles();

// Returns the contents of a regular file. A file of more than `limit` bytes is an error, and is not read; `what` is
// what the file should be, such as "a machine profile".
Expected<std::string> readSmallFile(const std::string& path, uint64_t limit, const std::string& what);

}  // namespace sheaf
