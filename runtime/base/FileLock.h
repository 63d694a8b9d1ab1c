// An advisory lock (flock) held while a set of files is renamed.
#pragma once

#include <chrono>
#include <string>

#include "runtime/base/Status.h"

namespace sheaf {

// Returns the path of the lock of `path`: of a file with a hidden name in its folder, which is cut if it is long.
std::string lockPath(const std::string& path);

class FileLock {
 public:
  // Waits until no other program holds the lock called `path`, a file that exists while it is held; an error after
  // `limit`. Where the file system has no locks (flock) it holds nothing and succeeds.
  static Expected<FileLock> take(const std::string& path, std::chrono::milliseconds limit = std::chrono::minutes(1));
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  FileLock(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace sheaf
