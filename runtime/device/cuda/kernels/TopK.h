// top_k (runtime/plan/calls/Selection.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sheaf::cuda {

struct TopKShape {
  int64_t outer, n, inner, k;
  bool largest;
};

// Of float, double, int32_t and int64_t. Few are found by a warp that scans a line for one after the other; for more,
// lines are sorted by a radix sort, with plan::deviceScratch bytes of scratch.
template <typename T>
cudaError_t topK(cudaStream_t stream, const TopKShape& shape, const T* source, int64_t* result, std::byte* scratch);

}  // namespace sheaf::cuda
