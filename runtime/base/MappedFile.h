// A file mapped read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/Status.h"

namespace sheaf {

class MappedFile {
 public:
  static Expected<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Gives back the memory of a part of bytes(), which has been read. Reading it again reads the file again. So a file
  // that is read once, in parts, is never in memory whole. Does nothing if `part` is not a part of this file.
  void release(std::span<const std::byte> part) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sheaf
