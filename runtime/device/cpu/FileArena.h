// A rank's bytes of the plan's buffers in space `file`: one file, rank-N.arena, in each folder of --offload-dir, over
// which they are striped.
//
// Without generations (plan.proto's Generation) the files are *temporary*: they are removed at the end. With
// generations they *outlive the run* (FileArenaOptions::state), and another run can resume from them. Then each file
// has a label after its bytes that says whose it is, and the first folder has the record that says which generation is
// the state after which step (CommitLog.h).
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

#include "runtime/base/AlignedMemory.h"
#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/device/FileLayer.h"
#include "runtime/device/cpu/CommitLog.h"

namespace sheaf::cpu {

struct FileArenaOptions {
  std::vector<std::string> folders;  // in the order of --offload-dir
  int64_t rank = 0, ranks = 1;
  uint64_t bytes = 0;  // of the arena, over all folders
  // Set: the files outlive the run. With a step in it they are opened as the state after that step; else they are made.
  std::optional<FileState> state;
  // For evaluations: the files are only read, and other readers may have them open.
  bool readOnly = false;
  FileLayer* files = nullptr;  // null: the system's own
};

// The files are locked against other runs, and have room for all bytes before the first is written. Input and output
// bypass the page cache (O_DIRECT) where the file system allows that. One thread may read while another one writes
// other bytes.
class FileArena {
 public:
  // Errors name the folder, if it is missing, given twice or not writable, or has no room; and the file, if another run
  // uses it, it is a link or not this user's, it holds a state that would be overwritten, or not the one that is asked
  // for.
  static Expected<std::unique_ptr<FileArena>> create(const FileArenaOptions& options);
  // The states that can be resumed: see Device::committed.
  static Expected<std::vector<Committed>> committed(const FileArenaOptions& options);
  // Removes the files, unless they hold a state.
  ~FileArena();
  FileArena(const FileArena&) = delete;
  FileArena& operator=(const FileArena&) = delete;

  uint64_t size() const { return size_; }
  bool isDirect() const { return direct_; }
  // At any offset in the arena. Bytes that were never written are zeros. Errors name the file and what the system says.
  Status read(uint64_t offset, std::span<std::byte> bytes);
  Status write(uint64_t offset, std::span<const std::byte> bytes);

  bool outlivesRun() const { return state_.has_value(); }
  // The generation, 0 or 1, of the state that the files were opened with; 0 if they were made.
  size_t generation() const { return generation_; }
  // Makes durable what has been written (fdatasync).
  Status persist();
  // Records that a generation is the state. Call it after persist(); the record is durable when this returns.
  // `isFirst`: see CommitRecord.
  Status commit(size_t generation, const Committed& state, bool isFirst);
  // From now on write() and commit() do nothing, so that the files keep the state that was committed last.
  void freeze() { frozen_ = true; }
  // Records the checksum of the state that was committed last; the next commit() removes it. Durable when it returns.
  Status writeChecksum(uint64_t hash);
  // Whether there is a checksum of the state that the files were opened with.
  bool hasChecksum() const { return checksum_.has_value(); }
  // An error that names the files if the recorded checksum is not `hash`.
  Status verifyChecksum(uint64_t hash) const;

 private:
  struct File {
    int descriptor = -1;
    std::string path, folder;
    bool own = false;  // this run has emptied it
  };
  struct Label;
  // Memory of blocks through which a read or write passes whose memory or offset is not a multiple of a block, as
  // O_DIRECT asks for.
  struct Bounce {
    std::mutex mutex;
    AlignedMemory data;
  };

  explicit FileArena(const FileArenaOptions& options);
  FileOwner owner() const;
  // Opens and locks the file of a folder.
  Status open(const std::string& folder);
  // For a run that begins: an error if the files hold a state, which it would overwrite.
  Status checkNoState();
  // Makes a file of its size, of zeros.
  Status empty(File& file, const std::string& option);
  // For a run that resumes: an error unless the file is the `index`-th of the state's.
  Status checkLabel(File& file, uint64_t index);
  Expected<std::optional<Label>> readLabel(File& file, uint64_t offset);
  // Opens the record, and finds the generation of the state that is resumed.
  Status openLog();
  // Finds the checksum of that state, if there is one.
  Status readChecksum();
  // Goes on without O_DIRECT.
  Status giveUpDirect();
  // Calls visit(file, offset in it, bytes) for the stripes of a range of the arena, in order.
  template <typename Visit>
  Status forEachStripe(uint64_t offset, uint64_t bytes, Visit visit);
  // At any offset in a file, through the bounce where that is needed.
  Status readFile(File& file, uint64_t offset, std::span<std::byte> bytes);
  Status writeFile(File& file, uint64_t offset, std::span<const std::byte> bytes);
  // By requests of at most 8 MiB, as the system takes them.
  Status readFully(const File& file, uint64_t offset, std::span<std::byte> bytes);
  Status writeFully(const File& file, uint64_t offset, std::span<const std::byte> bytes);

  FileLayer system_;
  FileLayer& layer_;  // the one above, or the one that was given
  const std::vector<std::string> folders_;
  const int64_t rank_, ranks_;
  const uint64_t size_;
  uint64_t each_ = 0;  // bytes of each file, without its label
  const std::optional<FileState> state_;
  const bool readOnly_;
  std::vector<File> files_;
  std::vector<std::pair<uint64_t, uint64_t>> identities_;  // of folders: device and inode
  std::unique_ptr<CommitLog> log_;                         // null: temporary files, or an evaluation
  size_t generation_ = 0;
  bool committed_ = false;  // the files hold a state
  std::optional<uint64_t> checksum_;
  int64_t step_ = 0;  // after which the state is that was committed last
  bool frozen_ = false;
  bool direct_ = true;
  Bounce in_, out_;  // for reads, and for writes
};

}  // namespace sheaf::cpu
