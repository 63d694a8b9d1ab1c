#include "runtime/base/WrittenPath.h"

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "runtime/base/Text.h"

namespace fs = std::filesystem;

namespace sheaf {

std::string writtenPath(const std::string& path) {
  std::error_code error;
  uint64_t bytes = 0;
  if (fs::is_directory(path, error)) {
    for (auto entry = fs::directory_iterator(path, error); !error && entry != fs::directory_iterator();
         entry.increment(error))
      if (entry->is_regular_file(error)) bytes += entry->file_size(error);
  } else if (!error) {
    bytes = fs::file_size(path, error);
  }
  return error ? path : cat(path, " (", bytesText(bytes), ")");
}

}  // namespace sheaf
