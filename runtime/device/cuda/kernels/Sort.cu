#include "runtime/device/cuda/kernels/Sort.h"

#include <utility>

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cuda {
namespace {

constexpr int kDigits = 256, kDigitBits = 8;
constexpr int kTile = plan::kScatterTile, kSortWarps = kBlockThreads / kWarp, kPerWarp = kTile / kSortWarps;
static_assert(kDigits == kBlockThreads, "a thread of a block for each digit");

__device__ inline int digitOf(uint32_t key, int shift) {
  return static_cast<int>(key >> shift & (kDigits - 1));
}

// counts[digit, tile]
__global__ void countKernel(const uint32_t* keys, int64_t count, int shift, uint32_t* counts) {
  __shared__ uint32_t ofTile[kDigits];
  ofTile[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTile, end = least<int64_t>(begin + kTile, count);
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlockThreads) atomicAdd(&ofTile[digitOf(keys[i], shift)], 1u);
  __syncthreads();
  counts[static_cast<int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = ofTile[threadIdx.x];
}

// Counts become the places where each digit's positions of each tile go. One block.
__global__ void placesKernel(uint32_t* counts, int64_t tiles) {
  __shared__ uint32_t sums[kDigits];
  uint32_t* own = counts + threadIdx.x * tiles;
  uint32_t sum = 0;
  for (int64_t tile = 0; tile < tiles; ++tile) sum += own[tile];
  sums[threadIdx.x] = sum;
  __syncthreads();
  uint32_t place = 0;
  for (unsigned digit = 0; digit < threadIdx.x; ++digit) place += sums[digit];
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const uint32_t here = own[tile];
    own[tile] = place;
    place += here;
  }
}

// Each warp takes a run of its tile, 32 positions at a time, so that equal digits keep their order.
__global__ void moveKernel(const Sorted from, const Sorted to, int64_t count, int shift, const uint32_t* places) {
  __shared__ uint32_t next[kSortWarps][kDigits];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, digit = threadIdx.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTile + warp * kPerWarp;
  for (int other = 0; other < kSortWarps; ++other) next[other][digit] = 0;
  __syncthreads();
  for (int64_t i = begin + lane; i < least<int64_t>(begin + kPerWarp, count); i += kWarp)
    atomicAdd(&next[warp][digitOf(from.keys[i], shift)], 1u);
  __syncthreads();
  uint32_t place = places[static_cast<int64_t>(digit) * gridDim.x + blockIdx.x];
  for (int other = 0; other < kSortWarps; ++other) {
    const uint32_t ofWarp = next[other][digit];
    next[other][digit] = place;
    place += ofWarp;
  }
  __syncthreads();
  for (int step = 0; step < kPerWarp; step += kWarp) {
    const int64_t i = begin + step + lane;
    const bool there = i < count;
    const uint32_t key = there ? from.keys[i] : 0;
    const int own = digitOf(key, shift);
    uint32_t same = ballot(there);  // the lanes with this lane's digit
    for (int bit = 0; bit < kDigitBits; ++bit) {
      const bool set = own >> bit & 1;
      const uint32_t votes = ballot(set);
      same &= set ? votes : ~votes;
    }
    const int before = __popc(same & ((1u << lane) - 1));
    const uint32_t first = next[warp][own];
    __syncwarp();
    if (there) {
      to.keys[first + before] = key;
      to.positions[first + before] = from.positions[i];
      if (before == 0) next[warp][own] = first + __popc(same);
    }
    __syncwarp();
  }
}

}  // namespace

cudaError_t sortByKeys(cudaStream_t stream, Sorted& sorted, Sorted& other, int64_t count, int bits, uint32_t* counts) {
  const int64_t tiles = (count + kTile - 1) / kTile;
  const Grid ofTiles = gridOf(tiles, 1, dim3(kBlockThreads));
  cudaError_t error = cudaSuccess;
  for (int shift = 0; error == cudaSuccess && shift < bits; shift += kDigitBits) {
    error = launch(countKernel, ofTiles, stream, sorted.keys, count, shift, counts);
    if (error == cudaSuccess) error = launch(placesKernel, {dim3(1), dim3(kBlockThreads)}, stream, counts, tiles);
    if (error == cudaSuccess) error = launch(moveKernel, ofTiles, stream, sorted, other, count, shift, counts);
    std::swap(sorted, other);
  }
  return error;
}

}  // namespace sheaf::cuda
