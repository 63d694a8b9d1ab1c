// A file that appears whole or not at all: written to a temporary file in the same folder, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/AlignedMemory.h"
#include "runtime/base/Status.h"

namespace sheaf {

class AtomicFile {
 public:
  // Fails early where the folder is missing or not writable.
  static Expected<AtomicFile> create(const std::string& path);
  // For a file of this size that is not read soon: its bytes bypass the page cache, where the file system allows that,
  // which takes about half of the processor time. Fails early where the disk has no room for it.
  static Expected<AtomicFile> createDirect(const std::string& path, uint64_t bytes);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();  // without commit(), nothing remains

  Status write(std::span<const std::byte> bytes);
  uint64_t size() const { return size_; }
  bool direct() const { return direct_; }
  // Syncs the file, gives it its name and syncs the folder.
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
  bool direct_ = false;
  AlignedMemory buffer_;
  size_t capacity_ = 0, filled_ = 0;  // bytes of the buffer
};

// Makes the names in a folder durable.
Status syncFolder(const std::string& folder);

// The folder part of a path, "." if there is none.
std::string folderOf(const std::string& path);

}  // namespace sheaf
