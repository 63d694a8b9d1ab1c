// A stable radix sort of positions by 32-bit keys, eight bits at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sheaf::cuda {

struct Sorted {
  uint32_t *keys, *positions;
};

// Sorts `count` keys, of which the lower `bits` count, with their positions: equal keys keep their order. `sorted`
// holds what is to be sorted and then what is, `other` as much memory; `counts` has 256 words for each
// plan::kScatterTile of the keys.
cudaError_t sortByKeys(cudaStream_t stream, Sorted& sorted, Sorted& other, int64_t count, int bits, uint32_t* counts);

}  // namespace sheaf::cuda
