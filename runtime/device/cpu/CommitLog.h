// What a rank's files are the state of: a small file next to them, which says it for each of two generations.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/device/Device.h"
#include "runtime/device/FileLayer.h"

namespace sheaf::cpu {

// Whose files they are.
struct FileOwner {
  uint64_t plan = 0, run = 0;  // the plan's hash, the run's number
  int64_t rank = 0, ranks = 1;
  uint64_t bytes = 0, folders = 1;  // of the rank's files, and over how many folders they are striped
};

struct CommitRecord {
  FileOwner owner;
  Committed state;
  bool isFirst = false;  // the run has begun with it: nothing is lost with it
};

// The file has a slot of a block for each generation. A record has a checksum, so that one that was not written as a
// whole counts as none.
class CommitLog {
 public:
  using Slots = std::array<std::optional<CommitRecord>, 2>;

  // Makes the file if there is none. Errors name it.
  static Expected<std::unique_ptr<CommitLog>> open(FileLayer& files, const std::string& folder, int64_t rank);
  // What is there; an error if there is no file.
  static Expected<Slots> read(FileLayer& files, const std::string& folder, int64_t rank);
  ~CommitLog();
  CommitLog(const CommitLog&) = delete;
  CommitLog& operator=(const CommitLog&) = delete;

  Expected<Slots> read() const;
  // Durable when it returns. Nothing: the generation is the state of no step.
  Status write(size_t generation, const std::optional<CommitRecord>& record);
  const std::string& path() const { return path_; }

 private:
  CommitLog(FileLayer& files, std::string path, int descriptor)
      : files_(files), path_(std::move(path)), descriptor_(descriptor) {}

  FileLayer& files_;
  const std::string path_;
  const int descriptor_;
};

}  // namespace sheaf::cpu
