// train.dropout and train.random_uniform (runtime/plan/calls/Moves.h), with the CPU's bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sheaf::cuda {

// What an element's random word is a function of, besides its place.
struct RandomWords {
  uint64_t seed;
  uint32_t node;
  uint64_t first;  // global index of element 0
  const int64_t* step;
};

struct DropoutProblem {
  const float* source;
  float* destination;
  int64_t count;
  RandomWords words;
  uint64_t threshold;  // an element is kept if its random word is at least that
  float scale;
};

struct UniformProblem {
  float* destination;
  int64_t count;
  RandomWords words;
};

cudaError_t dropout(cudaStream_t stream, const DropoutProblem& problem);
cudaError_t randomUniform(cudaStream_t stream, const UniformProblem& problem);

}  // namespace sheaf::cuda
