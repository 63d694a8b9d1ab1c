// gather and scatter_add (runtime/plan/calls/Moves.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace sheaf::cuda {

// The indices of a call, and where one that is out of range is reported.
struct Indices {
  const void* data;  // `count` of them, of 4 or 8 bytes, each in [-rows, rows)
  bool wide;
  int64_t count, rows;
  uint64_t* finding;
  uint64_t outOfRange;  // the finding
};

struct GatherProblem {
  const std::byte* data;  // [outer, rows, slice bytes]
  std::byte* result;      // [outer, count, slice bytes]
  int64_t outer, slice;
};

cudaError_t gather(cudaStream_t stream, const Indices& indices, const GatherProblem& problem);

struct ScatterProblem {
  const void* update;  // [outer, count, inner]
  void* result;        // [outer, rows, inner]
  int64_t outer, inner;
  bool half;
  std::byte* scratch;  // plan::deviceScratch bytes
};

// Positions are sorted by the row that they go to, those of a row in their order, by a radix sort; then each element of
// the result has a thread that adds up its positions.
cudaError_t scatterAdd(cudaStream_t stream, const Indices& indices, const ScatterProblem& problem);

}  // namespace sheaf::cuda
