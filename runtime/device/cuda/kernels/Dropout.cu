#include "runtime/device/cuda/kernels/Dropout.h"

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"

namespace sheaf::cuda {
namespace {

// Counters that the elements of a block need at most, each for four of them.
__host__ __device__ inline int64_t countersOf(const RandomWords& random) {
  // The place of a single block's first element is known.
  const int64_t before = random.blocks == 1 ? static_cast<int64_t>(random.first % 4) : 3;
  return (before + random.run + 3) / 4;
}

// Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. One counter gives the words of
// four elements, which a thread works on: calls store(element, word) for those that there are.
template <typename Store>
__device__ inline void forWords(const RandomWords& random, Store store) {
  const int64_t counters = countersOf(random);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  const int64_t block = thread / counters, group = thread % counters;
  if (block >= random.blocks) return;
  const uint64_t first = random.first + static_cast<uint64_t>(block) * random.stride;
  const int64_t begin = group * 4 - static_cast<int64_t>(first % 4);
  if (begin >= random.run) return;
  const uint64_t index = first / 4 + static_cast<uint64_t>(group);
  uint32_t words[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), random.node,
                       static_cast<uint32_t>(*random.step)};
  uint32_t key0 = static_cast<uint32_t>(random.seed), key1 = static_cast<uint32_t>(random.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * words[0], product1 = uint64_t{0xCD9E8D57u} * words[2];
    words[0] = static_cast<uint32_t>(product1 >> 32) ^ words[1] ^ key0;
    words[2] = static_cast<uint32_t>(product0 >> 32) ^ words[3] ^ key1;
    words[1] = static_cast<uint32_t>(product1);
    words[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = begin + i;
    if (at >= 0 && at < random.run) store(block * random.run + at, words[i]);
  }
}

__global__ void dropoutKernel(const DropoutProblem p) {
  forWords(p.words,
           [&](int64_t at, uint32_t word) { p.destination[at] = word >= p.threshold ? p.source[at] * p.scale : 0.0f; });
}

__global__ void uniformKernel(const UniformProblem p) {
  forWords(p.words,
           [&](int64_t at, uint32_t word) { p.destination[at] = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f; });
}

Grid gridFor(const RandomWords& random) {
  return gridOf(random.blocks * countersOf(random), kBlockThreads, dim3(kBlockThreads));
}

}  // namespace

cudaError_t dropout(cudaStream_t stream, const DropoutProblem& p) {
  return launch(dropoutKernel, gridFor(p.words), stream, p);
}

cudaError_t randomUniform(cudaStream_t stream, const UniformProblem& p) {
  return launch(uniformKernel, gridFor(p.words), stream, p);
}

}  // namespace sheaf::cuda
