// The record of the state that a rank's files (FileArena.h) hold: a small file next to them, rank-N.commit.
//
// The files keep two generations of the state: while a step reads one of them, it writes the other one. So the record
// has two slots of 4096 bytes, one for each generation: after which step of which run it is the state. An empty slot
// says that its generation is not a state.
//
// The newer of two records is always valid. The older one is valid until the ranks' vote says that all have the newer
// state (CpuContext::vote): from then on the next step overwrites its generation.
//
// A run that ends without an error also writes a checksum of its last state, into a third block. The next record
// removes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/device/FileLayer.h"

namespace sheaf::cpu {

// Which run's and rank's files these are. A run can only resume files whose owner is what it would write itself.
struct FileOwner {
  uint64_t plan = 0;  // hash of the plan's bytes
  uint64_t run = 0;   // drawn at random when the run began; runs that resume it keep it
  int64_t rank = 0, ranks = 1;
  uint64_t bytes = 0;    // of the state's arena, over all folders
  uint64_t folders = 1;  // that the arena is striped over
};

struct CommitRecord {
  FileOwner owner;
  Committed state;
  // The run has begun with this state and made no step since. Another run may overwrite it: it is only a copy of the
  // initial weights, or of the saved state that the run resumed.
  bool isFirst = false;
};

// XXH64 of the bytes of the state after a step: see CpuContext::writeChecksum.
struct StateChecksum {
  uint64_t run = 0;
  int64_t step = 0;
  uint64_t hash = 0;
};

class CommitLog {
 public:
  // By generation, 0 or 1. A slot whose checksum is wrong, as after a crash in the middle of a write, counts as empty.
  using Slots = std::array<std::optional<CommitRecord>, 2>;

  // Opens DIR/rank-N.commit for writing, and makes it if it is not there. Errors name the file.
  static Expected<std::unique_ptr<CommitLog>> open(FileLayer& files, const std::string& folder, int64_t rank);
  // Reads that file, and changes nothing. An error if it is not there or too short.
  static Expected<Slots> read(FileLayer& files, const std::string& folder, int64_t rank);
  // The same of the checksum; nothing if there is none.
  static Expected<std::optional<StateChecksum>> readChecksum(FileLayer& files, const std::string& folder, int64_t rank);
  ~CommitLog();
  CommitLog(const CommitLog&) = delete;
  CommitLog& operator=(const CommitLog&) = delete;

  // Writes the slot of a generation, before which it removes the checksum, or empties the slot. Durable (fdatasync)
  // when this returns.
  Status write(size_t generation, const std::optional<CommitRecord>& record);
  // Writes the checksum, or removes it. Durable when this returns.
  Status writeChecksum(const std::optional<StateChecksum>& checksum);
  const std::string& path() const { return path_; }

 private:
  CommitLog(FileLayer& files, std::string path, int descriptor)
      : files_(files), path_(std::move(path)), descriptor_(descriptor) {}
  static Expected<std::unique_ptr<CommitLog>> openToRead(FileLayer& files, const std::string& folder, int64_t rank);
  // A block of the file; what is missing at the file's end is zeros.
  Expected<std::vector<std::byte>> readBlock(size_t block) const;
  Status writeBlock(size_t block, const std::vector<std::byte>& bytes);

  FileLayer& files_;
  const std::string path_;
  const int descriptor_;
  bool hasChecksum_ = false;  // there may be one; of a log that is open for writing
};

}  // namespace sheaf::cpu
