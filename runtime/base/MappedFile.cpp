#include "runtime/base/MappedFile.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "runtime/base/Print.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"

namespace sheaf {

// The table of mappings, which a signal handler reads: entries are linked once and used again, never freed.
struct MappedFile::Entry {
  static constexpr size_t kPathBytes = 1024;
  std::atomic<bool> used{true};
  std::atomic<const std::byte*> begin{nullptr};  // null: nothing is mapped
  std::atomic<size_t> size{0};
  char path[kPathBytes] = {};
  Entry* next = nullptr;

  static std::atomic<Entry*> first;

  static Entry* take(const std::string& path) {
    Entry* entry = first.load();
    for (; entry; entry = entry->next)
      if (bool used = false; entry->used.compare_exchange_strong(used, true)) break;
    if (!entry) {
      entry = new Entry;
      entry->next = first.load();
      while (!first.compare_exchange_weak(entry->next, entry)) {
      }
    }
    // The end of a long path says more than its beginning.
    const std::string text = shownLine(path);
    std::snprintf(entry->path, kPathBytes, "%s",
                  text.c_str() + (text.size() < kPathBytes ? 0 : text.size() - kPathBytes + 1));
    return entry;
  }
};

std::atomic<MappedFile::Entry*> MappedFile::Entry::first{nullptr};

const char* mappedFileAt(const void* address) {
  const auto* byte = static_cast<const std::byte*>(address);
  for (const MappedFile::Entry* entry = MappedFile::Entry::first.load(); entry; entry = entry->next)
    if (const std::byte* begin = entry->begin.load(); begin && byte >= begin && byte < begin + entry->size.load())
      return entry->path;
  return nullptr;
}

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
    file.entry_ = Entry::take(path);
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) {
      int error = errno;
      file.size_ = 0;
      close(descriptor);
      return Status::error(cat("cannot map ", path, ": ", std::strerror(error)));
    }
    file.data_ = static_cast<const std::byte*>(data);
    file.entry_->size = file.size_;
    file.entry_->begin = file.data_;
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
  std::swap(entry_, other.entry_);
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
  if (entry_) entry_->begin = nullptr;
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
  if (entry_) entry_->used = false;
}

}  // namespace sheaf
