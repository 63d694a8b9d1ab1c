// Memory that the processes of one host share: each owns a block, and all map all blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/process/ProcessGroup.h"

namespace sheaf::comm {

// Blocks have no name in the file system (memfd), and their descriptors are closed once all have mapped them: nothing
// is left behind, however a process ends.
class SharedMemory {
 public:
  // Called by all processes of the job at the same time; those of a group map each other's blocks. `bytes`: of this
  // process's block, which is zero and begins at a multiple of 2 MiB. Descriptors travel over UNIX sockets. Ends early
  // with the signal.
  static Expected<std::unique_ptr<SharedMemory>> create(ProcessGroup& group, uint64_t bytes, const AbortSignal& abort);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // A process's block, by its number in the group.
  std::span<std::byte> block(int64_t process) const { return blocks_[static_cast<size_t>(process)]; }

 private:
  explicit SharedMemory(size_t processes) : blocks_(processes) {}

  std::vector<std::span<std::byte>> blocks_;
};

}  // namespace sheaf::comm
