// gather, scatter_add and scatter (runtime/plan/calls/Moves.h, Selection.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda/kernels/Half.h"

namespace sheaf::cuda {

// The indices of a call, and where one that is out of range is reported.
struct Indices {
  const void* data;  // [outer, count, inner], of 4 or 8 bytes, each in [-rows, rows)
  bool wide;
  int64_t count, rows;
  int64_t outer, inner;  // entries and elements that have indices of their own; 1 where all have the same
  uint64_t* finding;
  uint64_t outOfRange;  // the finding

  __host__ __device__ int64_t all() const { return outer * count * inner; }
  __host__ __device__ int64_t places() const { return outer * rows * inner; }  // that indices name
};

struct GatherProblem {
  const std::byte* data;  // [outer, places, slice bytes]
  std::byte* result;      // [outer, all indices, slice bytes]
  int64_t outer, slice;
};

cudaError_t gather(cudaStream_t stream, const Indices& indices, const GatherProblem& problem);

struct ScatterAddProblem {
  const void* update;  // [outer, count, inner]
  void* result;        // [outer, rows, inner]
  int64_t outer, inner;
  FloatType type;
  std::byte* scratch;  // plan::deviceScratch bytes
};

// Positions are sorted by the row that they go to, those of a row in their order, by a radix sort; then each element of
// the result has a thread that adds up its positions.
cudaError_t scatterAdd(cudaStream_t stream, const Indices& indices, const ScatterAddProblem& problem);

enum class ScatterKind { kReplace, kAdd, kMul, kMin, kMax };
enum class ScatterType { kF32, kF64, kI32, kI64 };

struct ScatterProblem {
  const void* update;  // [outer, all indices, inner]
  const void* data;    // [outer, places, inner], or null: zeros
  void* result;
  int64_t outer, inner;
  ScatterKind kind;
  ScatterType type;      // counts unless updates replace
  int64_t elementBytes;  // count if they do
  std::byte* scratch;    // plan::deviceScratch bytes
};

// As scatterAdd; a thread takes all updates of an element, in order.
cudaError_t scatter(cudaStream_t stream, const Indices& indices, const ScatterProblem& problem);

}  // namespace sheaf::cuda
