// A rank's arena in files: the plan's buffers in space `file`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"

namespace sheaf::cpu {

// One file in each folder, over which the bytes are striped. The files are locked against other runs, have room for all
// bytes before the first is written, and go with the arena: what they hold does not outlive the run. Input and output
// are direct (O_DIRECT) where the file system allows that. One thread may read while another one writes other bytes.
class FileArena {
 public:
  // Errors name the folder: it is missing, given twice or not writable, another run uses it, there is no room, or what
  // has the file's name is a link or not this user's.
  static Expected<std::unique_ptr<FileArena>> create(const std::vector<std::string>& folders, int64_t rank,
                                                     uint64_t bytes);
  ~FileArena();
  FileArena(const FileArena&) = delete;
  FileArena& operator=(const FileArena&) = delete;

  uint64_t size() const { return size_; }
  bool isDirect() const { return direct_; }
  // At any offset. Bytes that were never written are zeros. Errors name the file and what the system says.
  Status read(uint64_t offset, std::span<std::byte> bytes);
  Status write(uint64_t offset, std::span<const std::byte> bytes);

 private:
  struct File {
    int descriptor = -1;
    std::string path;
  };
  // Aligned memory through which what is not aligned passes.
  struct Bounce {
    std::mutex mutex;
    std::byte* data = nullptr;
  };

  FileArena() = default;
  Status open(const std::string& folder, int64_t rank, uint64_t bytes);
  Status giveUpDirect();
  // Calls visit(file, offset in it, bytes) for the stripes of a range, in order.
  template <typename Visit>
  Status forEachStripe(uint64_t offset, uint64_t bytes, Visit visit);
  Status readFile(File& file, uint64_t offset, std::span<std::byte> bytes);
  Status writeFile(File& file, uint64_t offset, std::span<const std::byte> bytes);
  static Status readFully(const File& file, uint64_t offset, std::span<std::byte> bytes);
  static Status writeFully(const File& file, uint64_t offset, std::span<const std::byte> bytes);

  std::vector<File> files_;
  std::vector<std::pair<uint64_t, uint64_t>> folders_;  // device and inode
  uint64_t size_ = 0;
  bool direct_ = true;
  Bounce in_, out_;
};

}  // namespace sheaf::cpu
