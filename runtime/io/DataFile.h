// A file whose rows are read when they are needed. It is not mapped: a mapped file that becomes shorter while a run
// reads it would kill the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::io {

class DataFile {
 public:
  // Opens a regular file. An error if that is not possible, or it is a Git LFS pointer.
  static Expected<DataFile> open(const std::string& path);
  DataFile(DataFile&& other) noexcept;
  DataFile& operator=(DataFile&& other) noexcept;
  ~DataFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened
  // Its first bytes: at most `count`.
  Expected<std::vector<std::byte>> head(size_t count) const;
  // Keeps all of it in memory: rows of small files are then not worth a call of the system each.
  Status hold();
  // Its bytes if they are held, else empty.
  std::span<const std::byte> held() const { return held_; }
  // Fills `bytes` from `offset` on. Returns how many there were: fewer where the file ends before.
  Expected<size_t> read(uint64_t offset, std::span<std::byte> bytes) const;
  // The size that it has now.
  uint64_t sizeNow() const;

 private:
  DataFile() = default;

  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  std::vector<std::byte> held_;
};

}  // namespace sheaf::io
