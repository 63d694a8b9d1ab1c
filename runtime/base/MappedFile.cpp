#include "runtime/base/MappedFile.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"

namespace sheaf {

Status refuseLfsPointer(const std::string& path, std::span<const std::byte> bytes) {
  constexpr size_t kMostBytes = 1024;  // the format's own limit
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/", kSize = "\nsize ";
  if (bytes.size() >= kMostBytes) return {};
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kBegin)) return {};
  std::string_view size;
  if (const size_t at = text.find(kSize); at != std::string_view::npos)
    size = text.substr(at + kSize.size(), text.find('\n', at + 1) - at - kSize.size());
  int64_t number = 0;
  return Status::error(cat(path, " has ", bytes.size(), " bytes: it is a Git LFS pointer in the place of a file",
                           parseInteger(size, number) ? cat(" of ", number, " bytes") : "",
                           "; fetch the file with `git lfs pull`"));
}

Expected<MappedFile> MappedFile::open(const std::string& path) {
  Expected<OpenFile> opened = openRegularFile(path);
  if (!opened.ok()) return opened.status();
  const int descriptor = opened->descriptor;
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(opened->size);
  if (file.size_ > 0) {
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) {
      int error = errno;
      file.size_ = 0;
      close(descriptor);
      return Status::error(cat("cannot map ", path, ": ", std::strerror(error)));
    }
    file.data_ = static_cast<const std::byte*>(data);
  }
  close(descriptor);
  SHEAF_RETURN_IF_ERROR(refuseLfsPointer(path, file.bytes()));
  return file;
}

Expected<std::span<const std::byte>> MappedFile::slice(uint64_t offset, uint64_t length) const {
  if (offset > size_ || length > size_ - offset)
    return Status::error(cat(path_, " has ", size_, " bytes, and ", length, " at offset ", offset,
                             " are needed: the file is truncated, or is another one"));
  return bytes().subspan(offset, length);
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release(std::span<const std::byte> part) const {
  if (part.empty() || part.data() < data_ || part.data() + part.size() > data_ + size_) return;
  // Whole pages: neighbours that share a page with the part are read again at their next use.
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = static_cast<size_t>(part.data() - data_) / page * page;
  const size_t end = static_cast<size_t>(part.data() - data_) + part.size();
  madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace sheaf
