// A rank's arena in files: the plan's buffers in space `file`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/device/FileLayer.h"
#include "runtime/device/cpu/CommitLog.h"

namespace sheaf::cpu {

struct FileArenaOptions {
  std::vector<std::string> folders;
  int64_t rank = 0, ranks = 1;
  uint64_t bytes = 0;
  std::optional<FileState> state;  // set: the files outlive the run
  FileLayer* files = nullptr;      // null: the system's own
};

// One file in each folder, over which the bytes are striped. The files are locked against other runs and have room for
// all bytes before the first is written. Input and output are direct (O_DIRECT) where the file system allows that. One
// thread may read while another one writes other bytes.
//
// What the files hold goes with the arena, unless it has been committed as a state, or was when they were opened: then
// they stay, each with a label after its bytes that says whose they are. Files that hold a state are opened with that
// state only.
class FileArena {
 public:
  // Errors name the folder: it is missing, given twice or not writable, another run uses it, there is no room, what has
  // the file's name is a link or not this user's, or what the files hold is not what they are opened for.
  static Expected<std::unique_ptr<FileArena>> create(const FileArenaOptions& options);
  // The states that the files hold: see Device::committed.
  static Expected<std::vector<Committed>> committed(const FileArenaOptions& options);
  ~FileArena();
  FileArena(const FileArena&) = delete;
  FileArena& operator=(const FileArena&) = delete;

  uint64_t size() const { return size_; }
  bool isDirect() const { return direct_; }
  // At any offset. Bytes that were never written are zeros. Errors name the file and what the system says.
  Status read(uint64_t offset, std::span<std::byte> bytes);
  Status write(uint64_t offset, std::span<const std::byte> bytes);

  bool outlivesRun() const { return state_.has_value(); }
  // Which generation has the state that the files were opened with: 0 or 1.
  size_t generation() const { return generation_; }
  // What was written is durable when it returns.
  Status persist();
  // Says that a generation, which has been persisted, is the state. Durable when it returns. `isFirst`: that which the
  // run begins with.
  Status commit(size_t generation, const Committed& state, bool isFirst);
  // Nothing is written any more: the files keep the state that was committed last.
  void freeze() { frozen_ = true; }

 private:
  struct File {
    int descriptor = -1;
    std::string path, folder;
    bool own = false;  // nothing in it is another run's
  };
  struct Label;
  // Aligned memory through which what is not aligned passes.
  struct Bounce {
    std::mutex mutex;
    std::byte* data = nullptr;
  };

  explicit FileArena(const FileArenaOptions& options);
  FileOwner owner() const;
  Status open(const std::string& folder);
  Status checkNoState();
  Status empty(File& file, const std::string& option);
  Status checkLabel(File& file, uint64_t index);
  Expected<std::optional<Label>> readLabel(File& file, uint64_t offset);
  Status openLog();
  Status giveUpDirect();
  // Calls visit(file, offset in it, bytes) for the stripes of a range, in order.
  template <typename Visit>
  Status forEachStripe(uint64_t offset, uint64_t bytes, Visit visit);
  Status readFile(File& file, uint64_t offset, std::span<std::byte> bytes);
  Status writeFile(File& file, uint64_t offset, std::span<const std::byte> bytes);
  Status readFully(const File& file, uint64_t offset, std::span<std::byte> bytes);
  Status writeFully(const File& file, uint64_t offset, std::span<const std::byte> bytes);

  FileLayer system_;
  FileLayer& layer_;
  const std::vector<std::string> folders_;
  const int64_t rank_, ranks_;
  const uint64_t size_;
  uint64_t each_ = 0;  // bytes of each file, without its label
  const std::optional<FileState> state_;
  std::vector<File> files_;
  std::vector<std::pair<uint64_t, uint64_t>> identities_;  // of folders: device and inode
  std::unique_ptr<CommitLog> log_;
  size_t generation_ = 0;
  bool committed_ = false;  // the files hold a state
  bool frozen_ = false;
  bool direct_ = true;
  Bounce in_, out_;
};

}  // namespace sheaf::cpu
