// A file that appears whole or not at all: written to a temporary file in the same folder, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/AlignedMemory.h"
#include "runtime/base/NewFiles.h"
#include "runtime/base/Status.h"

namespace sheaf {

class AtomicFile {
 public:
  // Fails early where the folder is missing or not writable.
  static Expected<AtomicFile> create(const std::string& path);
  // For a file of at most this size that is not read soon: its bytes bypass the page cache (open(2), O_DIRECT) where
  // the file system allows that, so that nothing is copied there and what is cached stays. Room is reserved where the
  // file system can, and a disk without room is an error at once.
  static Expected<AtomicFile> createDirect(const std::string& path, uint64_t bytes);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();  // without commit(), nothing remains

  Status write(std::span<const std::byte> bytes);
  uint64_t size() const { return size_; }
  bool direct() const { return direct_; }
  // Syncs the file, gives it its name and syncs the folder.
  // An error if any write has failed.
  Status commit();

 private:
  AtomicFile() = default;
  static Expected<AtomicFile> create(const std::string& path, size_t bufferBytes);
  Status writeOut(std::span<const std::byte> bytes);
  Status giveUpDirect();
  Status flush();
  Status failure(const char* what) const;

  std::string path_, temporary_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  bool direct_ = false, failed_ = false;
  uint64_t reserved_ = 0;
  AlignedMemory buffer_;
  size_t capacity_ = 0, filled_ = 0;  // bytes of the buffer
};

}  // namespace sheaf
