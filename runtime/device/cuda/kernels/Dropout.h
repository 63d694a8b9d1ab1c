// train.dropout and train.random_uniform (runtime/plan/calls/Moves.h), with the CPU's bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sheaf::cuda {

// What an element's random word is a function of, besides its place.
struct RandomWords {
  uint64_t seed;
  uint32_t node;
  const int64_t* step;
  // Element 0 of block b has the global index first + b * stride, and `run` elements follow each other.
  uint64_t first, stride;
  int64_t run, blocks;
};

struct DropoutProblem {
  const float* source;
  float* destination;
  RandomWords words;
  uint64_t threshold;  // an element is kept if its random word is at least that
  float scale;
};

struct UniformProblem {
  float* destination;
  RandomWords words;
};

cudaError_t dropout(cudaStream_t stream, const DropoutProblem& problem);
cudaError_t randomUniform(cudaStream_t stream, const UniformProblem& problem);

}  // namespace sheaf::cuda
