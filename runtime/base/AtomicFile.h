// A file that appears whole or not at all: written to a temporary file in the same folder, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf {

class AtomicFile {
 public:
  // Fails early where the folder is missing or not writable.
  static Expected<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();  // without commit(), nothing remains

  Status write(std::span<const std::byte> bytes);
  uint64_t size() const { return size_; }
  // Syncs the file, gives it its name and syncs the folder.
  Status commit();

 private:
  AtomicFile() = default;
  Status flush();
  Status failure(const char* what) const;

  std::string path_, temporary_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

// Makes the names in a folder durable.
Status syncFolder(const std::string& folder);

// The folder part of a path, "." if there is none.
std::string folderOf(const std::string& path);

}  // namespace sheaf
