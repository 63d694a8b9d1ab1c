// Grids of kernels that work on rows of elements: blocks of 256 threads, as wide as a row where that is less.
#pragma once

#include <cstdint>

#include "runtime/device/cuda/Launch.h"

namespace sheaf::cuda {

constexpr int kBlockThreads = 256;

// A block for each `each` of `items`; none if there are too many.
inline Grid gridOf(int64_t items, int64_t each, dim3 threads, size_t sharedBytes = 0) {
  const int64_t blocks = (items + each - 1) / each;
  return {dim3(blocks > INT32_MAX ? 0 : static_cast<unsigned>(blocks)), threads, sharedBytes};
}

// Threads of a block over rows of `columns` elements.
inline dim3 threadsFor(int64_t columns) {
  unsigned across = 1;
  while (across < columns && across < kBlockThreads) across *= 2;
  return dim3(across, kBlockThreads / across);
}

}  // namespace sheaf::cuda
