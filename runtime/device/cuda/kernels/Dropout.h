// train.dropout (runtime/plan/calls/Moves.h), with the CPU's bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sheaf::cuda {

struct DropoutProblem {
  const float* source;
  float* destination;
  int64_t count;
  uint64_t first;  // global index of element 0
  uint64_t seed;
  uint32_t node;
  const int64_t* step;
  uint64_t threshold;  // an element is kept if its random word is at least that
  float scale;
};

cudaError_t dropout(cudaStream_t stream, const DropoutProblem& problem);

}  // namespace sheaf::cuda
