#include "runtime/device/cuda/Arena.h"

#include <algorithm>
#include <vector>

#include "runtime/device/cuda/Resources.h"

namespace sheaf::cuda {
namespace {

// Bytes after its end that a poisoned arena watches.
constexpr uint64_t kWatched = 1 << 20;
constexpr unsigned char kPattern = 0xA5;
// NCCL registers memory in multiples of this.
constexpr uint64_t kPage = 4096;
// Read at a time when the pattern is looked for.
constexpr uint64_t kChunk = 16 << 20;

}  // namespace

Memory ordinaryMemory() {
  return {[](uint64_t bytes) -> Expected<std::byte*> {
            void* memory = nullptr;
            SHEAF_RETURN_IF_ERROR(check(cudaMalloc(&memory, bytes), "cannot allocate device memory"));
            return static_cast<std::byte*>(memory);
          },
          [](std::byte* memory) { (void)cudaFree(memory); }};
}

uint64_t Arena::allocatedBytes(uint64_t bytes, bool poison) {
  // An empty arena has one page, because an allocation cannot be empty.
  return (std::max<uint64_t>(bytes + (poison ? kWatched : 0), 1) + kPage - 1) / kPage * kPage;
}

Expected<std::unique_ptr<Arena>> Arena::create(const Memory& memory, uint64_t bytes, bool poison) {
  uint64_t allocated = allocatedBytes(bytes, poison);
  Expected<std::byte*> data = memory.allocate(allocated);
  if (!data.ok())
    return Status::error(cat(data.status().message(), ", an arena of ", bytesText(bytes),
                             "; use more ranks, a higher ZeRO stage or a smaller batch"));
  std::unique_ptr<Arena> arena(new Arena(memory, *data, bytes, allocated, poison));
  SHEAF_RETURN_IF_ERROR(arena->clear());
  return arena;
}

Status Arena::clear() {
  return fill(data_, poison_ ? kPattern : 0, allocated_);
}

Status Arena::checkRange(uint64_t offset, uint64_t bytes) const {
  if (offset <= size_ && bytes <= size_ - offset) return {};
  return Status::error(cat("bytes [", offset, ", +", bytes, ") lie outside the arena of ", size_));
}

Status Arena::read(uint64_t offset, std::span<std::byte> host) const {
  SHEAF_RETURN_IF_ERROR(checkRange(offset, host.size()));
  return check(cudaMemcpy(host.data(), data_ + offset, host.size(), cudaMemcpyDeviceToHost), "cannot read the arena");
}

Status Arena::write(uint64_t offset, std::span<const std::byte> host) {
  SHEAF_RETURN_IF_ERROR(checkRange(offset, host.size()));
  SHEAF_RETURN_IF_ERROR(
      check(cudaMemcpy(data_ + offset, host.data(), host.size(), cudaMemcpyHostToDevice), "cannot write to the arena"));
  // A copy from pageable memory may return when its source is staged.
  return check(cudaStreamSynchronize(nullptr), "cannot write to the arena");
}

uint64_t Arena::highestTouchedByte() const {
  if (!poison_) return 0;
  std::vector<std::byte> chunk(std::min(kChunk, allocated_));
  for (uint64_t end = allocated_; end > 0;) {
    uint64_t begin = end - std::min<uint64_t>(end, chunk.size());
    if (cudaMemcpy(chunk.data(), data_ + begin, end - begin, cudaMemcpyDeviceToHost) != cudaSuccess) return allocated_;
    for (uint64_t i = end - begin; i > 0; --i)
      if (chunk[i - 1] != std::byte{kPattern}) return begin + i;
    end = begin;
  }
  return 0;
}

}  // namespace sheaf::cuda
