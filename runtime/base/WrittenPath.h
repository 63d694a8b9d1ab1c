// Names a file or folder that was written, for a line that ends a command.
#pragma once

#include <string>

namespace sheaf {

// "model.plan (12.1 KiB)"; of a folder the bytes of its files. Without the size if it cannot be read.
std::string writtenPath(const std::string& path);

}  // namespace sheaf
