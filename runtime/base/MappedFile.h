// A file mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/Status.h"

namespace sheaf {

// Refuses a Git LFS pointer: the text file that stands for a large file in a checkout without Git LFS.
Status refuseLfsPointer(const std::string& path, std::span<const std::byte> bytes);

// Returns the printable path of the mapped file that contains `address`, or null. Safe in a signal handler.
const char* mappedFileAt(const void* address);

class MappedFile {
 public:
  // Maps a file whole. An error if it cannot be read, or is a Git LFS pointer.
  static Expected<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // The bytes from `offset` to `offset + length`. An error that names the sizes if the file ends before. Every reader
  // whose offsets come from another file takes its bytes from here: to touch a mapping beyond the file's end is fatal.
  Expected<std::span<const std::byte>> slice(uint64_t offset, uint64_t length) const;
  // Gives back the memory of a part of bytes(), which has been read. Reading it again reads the file again. So a file
  // that is read once, in parts, is never in memory whole. Does nothing if `part` is not a part of this file.
  void release(std::span<const std::byte> part) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  struct Entry;
  Entry* entry_ = nullptr;  // in the table of mappings
  friend const char* mappedFileAt(const void* address);
};

}  // namespace sheaf
