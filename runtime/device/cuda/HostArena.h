// Pinned memory of a rank: its arena in host memory, or what its transfers of files pass through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/device/cuda/Check.h"

namespace sheaf::cuda {

// Memory of the process itself that is registered with CUDA. Unlike cudaHostAlloc's it lies on the NUMA node that it is
// bound to, and is ordinary anonymous memory to the system, which direct input and output takes.
class HostArena {
 public:
  // `bytes`, at least 1, at a multiple of 4,096, all of them in memory when this returns: zeroed, or with `poison` full
  // of a pattern. They lie on NUMA node `node` if the system lets the process choose, and it has room; -1: anywhere.
  // The error says what the limits are. `what` they are for: "the arena in host memory".
  static Expected<std::unique_ptr<HostArena>> create(uint64_t bytes, int node, bool poison, const char* what);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  Status read(uint64_t offset, std::span<std::byte> host) const;
  Status write(uint64_t offset, std::span<const std::byte> host);
  // Bytes from this place to the end of what was registered in one call: no copy may be longer.
  uint64_t copiable(const std::byte* place) const;
  // The NUMA node that its first byte lies on; -1 if the system does not say.
  int node() const;

 private:
  HostArena(std::byte* data, uint64_t size, uint64_t mapped) : data_(data), size_(size), mapped_(mapped) {}
  Status checkRange(uint64_t offset, uint64_t bytes) const;
  // In pieces of so many bytes; none is registered if one cannot be.
  cudaError_t registerPieces(uint64_t piece);
  void unregister(uint64_t bytes);

  std::byte* const data_;
  const uint64_t size_, mapped_;
  uint64_t piece_ = 0;  // 0: not registered
};

// The NUMA node closest to the GPU; -1 if it is not known.
int nodeOf(int gpu);
// Keeps the calling thread to the processors of a NUMA node among those that it may use; where there are none, or the
// node is not known, it stays as it is.
void runOnNode(int node);

}  // namespace sheaf::cuda
