// One rank's memory on its GPU: every buffer of the plan lies in it at its offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "runtime/base/Status.h"

namespace sheaf::cuda {

// Where arenas come from: cudaMalloc's memory, or NCCL's, which other GPUs can reach.
struct Memory {
  std::function<Expected<std::byte*>(uint64_t bytes)> allocate;
  std::function<void(std::byte*)> release;
};
Memory ordinaryMemory();

class Arena {
 public:
  // Zeroed. With `poison` it holds a pattern instead, and so do the bytes after its end that belong to no buffer.
  static Expected<std::unique_ptr<Arena>> create(const Memory& memory, uint64_t bytes, bool poison);
  ~Arena() { memory_.release(data_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  // Including the bytes after the end that `poison` watches.
  uint64_t allocated() const { return allocated_; }
  static uint64_t allocatedBytes(uint64_t bytes, bool poison);

  // As it was when it was created.
  Status clear();
  Status read(uint64_t offset, std::span<std::byte> host) const;
  Status write(uint64_t offset, std::span<const std::byte> host);
  // 1 + the highest byte that no longer holds the pattern; 0 without poison or if none was touched.
  uint64_t highestTouchedByte() const;

 private:
  Arena(Memory memory, std::byte* data, uint64_t size, uint64_t allocated, bool poison)
      : memory_(std::move(memory)), data_(data), size_(size), allocated_(allocated), poison_(poison) {}
  Status checkRange(uint64_t offset, uint64_t bytes) const;

  const Memory memory_;
  std::byte* const data_;
  const uint64_t size_, allocated_;
  const bool poison_;
};

}  // namespace sheaf::cuda
