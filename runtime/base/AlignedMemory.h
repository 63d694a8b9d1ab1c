// Memory for reads and writes that bypass the page cache (open(2), O_DIRECT): its address, and the sizes and offsets of
// the requests, must be multiples of the disk's logical block.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace sheaf {

constexpr size_t kDirectAlignment = 4096;  // the largest logical block of common disks

struct FreeAligned {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte[], FreeAligned>;

// `bytes`: a multiple of kDirectAlignment. Null if there is no memory.
inline AlignedMemory allocateAligned(size_t bytes) {
  return AlignedMemory(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, bytes)));
}

}  // namespace sheaf
