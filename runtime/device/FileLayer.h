// The system's calls on the files of space `file`: a test puts one in their place that fails, or forgets what it was
// not asked to keep.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

namespace sheaf {

// Each does what the call does that it is named after, and says it in the same way.
class FileLayer {
 public:
  virtual ~FileLayer() = default;
  virtual int open(const std::string& path, int flags, mode_t mode) { return ::open(path.c_str(), flags, mode); }
  virtual int close(int descriptor) { return ::close(descriptor); }
  virtual int unlink(const std::string& path) { return ::unlink(path.c_str()); }
  virtual int ftruncate(int descriptor, uint64_t bytes) { return ::ftruncate(descriptor, static_cast<off_t>(bytes)); }
  // Returns the error, and leaves errno alone.
  virtual int fallocate(int descriptor, uint64_t bytes) {
    return ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  }
  virtual ssize_t pread(int descriptor, void* to, size_t bytes, uint64_t offset) {
    return ::pread(descriptor, to, bytes, static_cast<off_t>(offset));
  }
  virtual ssize_t pwrite(int descriptor, const void* from, size_t bytes, uint64_t offset) {
    return ::pwrite(descriptor, from, bytes, static_cast<off_t>(offset));
  }
  virtual int fdatasync(int descriptor) { return ::fdatasync(descriptor); }
  // Of a folder: the names in it.
  virtual int fsync(const std::string& folder) {
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return -1;
    const int result = ::fsync(descriptor), error = errno;
    ::close(descriptor);
    errno = error;
    return result;
  }
};

}  // namespace sheaf
