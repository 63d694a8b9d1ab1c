#include "runtime/base/AtomicFile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/Text.h"

namespace sheaf {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
// Requests of this size are large enough for a local disk (measured on one), and the buffer stays in a core's cache.
constexpr size_t kDirectBufferBytes = 1 << 20;

}  // namespace

Expected<AtomicFile> AtomicFile::create(const std::string& path) {
  return create(path, kBufferBytes);
}

Expected<AtomicFile> AtomicFile::createDirect(const std::string& path, uint64_t bytes) {
  Expected<AtomicFile> file = create(path, kDirectBufferBytes);
  if (!file.ok() || bytes == 0) return file;
  if (::fallocate(file->descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0)
    file->reserved_ = bytes;
  else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    return Status::error(cat("cannot write ", path, ": no room for ", bytesText(bytes), ": ", std::strerror(errno)));
  const int flags = fcntl(file->descriptor_, F_GETFL);
  file->direct_ = flags >= 0 && fcntl(file->descriptor_, F_SETFL, flags | O_DIRECT) == 0;
  return file;
}

Expected<AtomicFile> AtomicFile::create(const std::string& path, size_t bufferBytes) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    return Status::error(cat("cannot write ", path, ": it exists and is not a regular file"));
  AtomicFile file;
  file.path_ = path;
  Expected<TemporaryFile> made = makeTemporaryFile(path);
  if (!made.ok()) return made.status();
  file.temporary_ = std::move(made->path);
  file.descriptor_ = made->descriptor;
  file.buffer_ = allocateAligned(bufferBytes);
  if (!file.buffer_) return Status::error(cat("cannot write ", path, ": no memory for a buffer"));
  file.capacity_ = bufferBytes;
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
  std::swap(direct_, other.direct_);
  std::swap(failed_, other.failed_);
  std::swap(reserved_, other.reserved_);
  std::swap(buffer_, other.buffer_);
  std::swap(capacity_, other.capacity_);
  std::swap(filled_, other.filled_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::failure(const char* what) const {
  return Status::error(cat("cannot ", what, " ", path_, ": ", std::strerror(errno)));
}

Status AtomicFile::writeOut(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    // The bytes are not whole blocks (the end of the file, or the rest of a short write), or the file system takes
    // direct files but no direct writes.
    if (written < 0 && errno == EINVAL && direct_) {
      SHEAF_RETURN_IF_ERROR(giveUpDirect());
      continue;
    }
    if (written <= 0) {
      failed_ = true;
      return failure("write");
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status AtomicFile::giveUpDirect() {
  direct_ = false;
  return fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) & ~O_DIRECT) == 0 ? Status() : failure("write");
}

Status AtomicFile::flush() {
  const std::span<const std::byte> bytes(buffer_.get(), std::exchange(filled_, 0));
  return writeOut(bytes);
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  // As much as a buffer holds needs no copy, except where memory must be aligned.
  if (bytes.size() >= capacity_ && !direct_) {
    SHEAF_RETURN_IF_ERROR(flush());
    return writeOut(bytes);
  }
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), capacity_ - filled_);
    std::memcpy(buffer_.get() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == capacity_) SHEAF_RETURN_IF_ERROR(flush());
  }
  return {};
}

Status AtomicFile::commit() {
  if (failed_) return Status::error(cat("cannot write ", path_, ": a write of it has failed before"));
  SHEAF_RETURN_IF_ERROR(flush());
  if (reserved_ > size_ && ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) return failure("write");
  if (fsync(descriptor_) != 0) return failure("sync");
  int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0) return failure("close");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return failure("name");
  temporary_.clear();
  return syncFolder(folderOf(path_));
}

}  // namespace sheaf
