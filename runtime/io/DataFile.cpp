#include "runtime/io/DataFile.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/MappedFile.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"

namespace sheaf::io {

Expected<DataFile> DataFile::open(const std::string& path) {
  DataFile file;
  file.path_ = path;
  Expected<OpenFile> opened = openRegularFile(path);
  if (!opened.ok()) return opened.status();
  file.descriptor_ = opened->descriptor;
  file.size_ = opened->size;
  constexpr size_t kPointerBytes = 1024;  // more than a pointer has
  Expected<std::vector<std::byte>> head = file.head(kPointerBytes);
  if (!head.ok()) return head.status();
  SHEAF_RETURN_IF_ERROR(refuseLfsPointer(path, *head));
  return file;
}

DataFile::DataFile(DataFile&& other) noexcept {
  *this = std::move(other);
}

DataFile& DataFile::operator=(DataFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(held_, other.held_);
  return *this;
}

DataFile::~DataFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Expected<std::vector<std::byte>> DataFile::head(size_t count) const {
  std::vector<std::byte> bytes(std::min<uint64_t>(count, size_));
  Expected<size_t> got = read(0, bytes);
  if (!got.ok()) return got.status();
  bytes.resize(*got);
  return bytes;
}

Status DataFile::hold() {
  Expected<std::vector<std::byte>> all = head(size_);
  if (!all.ok()) return all.status();
  if (all->size() < size_) return Status::error(cat(path_, " has become shorter while it was read"));
  held_ = std::move(*all);
  return {};
}

Expected<size_t> DataFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t count = pread(descriptor_, bytes.data() + got, bytes.size() - got, static_cast<off_t>(offset + got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Status::error(cat("cannot read ", path_, ": ", std::strerror(errno)));
    if (count == 0) break;
    got += static_cast<size_t>(count);
  }
  return got;
}

uint64_t DataFile::sizeNow() const {
  struct stat info;
  return fstat(descriptor_, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

}  // namespace sheaf::io
