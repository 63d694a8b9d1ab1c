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

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sheaf
