#include "runtime/base/AtomicFile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/Text.h"

namespace sheaf {
namespace {
constexpr size_t kBufferBytes = 256 * 1024;
}

std::string folderOf(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status syncFolder(const std::string& folder) {
  int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return Status::error(cat("cannot open folder ", folder, ": ", std::strerror(errno)));
  // Some file systems cannot sync folders (EINVAL); they give no stronger promise to wait for.
  bool failed = fsync(descriptor) != 0 && errno != EINVAL;
  int error = errno;
  close(descriptor);
  if (failed) return Status::error(cat("cannot sync folder ", folder, ": ", std::strerror(error)));
  return {};
}

Expected<AtomicFile> AtomicFile::create(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    return Status::error(cat("cannot write ", path, ": it exists and is not a regular file"));
  AtomicFile file;
  file.path_ = path;
  file.temporary_ = path + ".XXXXXX";
  file.descriptor_ = mkostemp(file.temporary_.data(), O_CLOEXEC);
  if (file.descriptor_ < 0) {
    int error = errno;
    file.temporary_.clear();
    return Status::error(cat("cannot write ", path, ": ", std::strerror(error)));
  }
  // mkostemp makes files private; give them what a plain open would.
  mode_t mask = umask(0);
  umask(mask);
  fchmod(file.descriptor_, 0666 & ~mask);
  file.buffer_.reserve(kBufferBytes);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept {
  *this = std::move(other);
}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::failure(const char* what) const {
  return Status::error(cat("cannot ", what, " ", path_, ": ", std::strerror(errno)));
}

static bool writeAll(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

Status AtomicFile::flush() {
  if (!writeAll(descriptor_, buffer_)) return failure("write");
  buffer_.clear();
  return {};
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) SHEAF_RETURN_IF_ERROR(flush());
  if (bytes.size() > kBufferBytes) {
    if (!writeAll(descriptor_, bytes)) return failure("write");
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  return {};
}

Status AtomicFile::commit() {
  SHEAF_RETURN_IF_ERROR(flush());
  if (fsync(descriptor_) != 0) return failure("sync");
  int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0) return failure("close");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return failure("name");
  temporary_.clear();
  return syncFolder(folderOf(path_));
}

}  // namespace sheaf
