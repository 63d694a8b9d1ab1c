#include "runtime/device/cuda/kernels/Indexing.h"

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cuda {
namespace {

// The row that index i names; row 0, and a finding, if there is none.
__device__ inline int64_t rowOf(const Indices& indices, int64_t i) {
  const int64_t value =
      indices.wide ? static_cast<const int64_t*>(indices.data)[i] : static_cast<const int32_t*>(indices.data)[i];
  if (value >= -indices.rows && value < indices.rows) return value < 0 ? value + indices.rows : value;
  atomicCAS(reinterpret_cast<unsigned long long*>(indices.finding), 0ull, indices.outOfRange);
  return 0;
}

// Slices of `width` vectors; a row of threads for each slice.
template <typename Vector>
__global__ void gatherKernel(const Indices indices, const Vector* data, Vector* result, int64_t slices, int64_t width) {
  const int64_t slice = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (slice >= slices) return;
  const int64_t outer = slice / indices.count, row = rowOf(indices, slice - outer * indices.count);
  const Vector* from = data + (outer * indices.rows + row) * width;
  Vector* to = result + slice * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

template <typename Vector>
cudaError_t gatherAs(cudaStream_t stream, const Indices& indices, const GatherProblem& p) {
  const int64_t width = p.slice / static_cast<int64_t>(sizeof(Vector)), slices = p.outer * indices.count;
  const dim3 threads = threadsFor(width);
  return launch(gatherKernel<Vector>, gridOf(slices, threads.y, threads), stream, indices,
                reinterpret_cast<const Vector*>(p.data), reinterpret_cast<Vector*>(p.result), slices, width);
}

// --- a stable radix sort of positions by row, eight bits at a time ---

constexpr int kDigits = 256, kDigitBits = 8;
constexpr int kTile = plan::kScatterTile, kSortWarps = kBlockThreads / kWarp, kPerWarp = kTile / kSortWarps;
static_assert(kDigits == kBlockThreads, "a thread of a block for each digit");

struct Sorted {
  uint32_t *rows, *positions;
};

__global__ void rowsKernel(const Indices indices, Sorted to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (i >= indices.count) return;
  to.rows[i] = static_cast<uint32_t>(rowOf(indices, i));
  to.positions[i] = static_cast<uint32_t>(i);
}

__device__ inline int digitOf(uint32_t row, int shift) {
  return static_cast<int>(row >> shift & (kDigits - 1));
}

// counts[digit, tile]
__global__ void countKernel(const uint32_t* rows, int64_t count, int shift, uint32_t* counts) {
  __shared__ uint32_t ofTile[kDigits];
  ofTile[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTile, end = least<int64_t>(begin + kTile, count);
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlockThreads) atomicAdd(&ofTile[digitOf(rows[i], shift)], 1u);
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
    atomicAdd(&next[warp][digitOf(from.rows[i], shift)], 1u);
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
    const uint32_t row = there ? from.rows[i] : 0;
    const int own = digitOf(row, shift);
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
      to.rows[first + before] = row;
      to.positions[first + before] = from.positions[i];
      if (before == 0) next[warp][own] = first + __popc(same);
    }
    __syncwarp();
  }
}

// starts[row]: the first of the sorted positions whose row is at least that.
__global__ void startsKernel(const uint32_t* rows, int64_t count, int64_t numRows, uint32_t* starts) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (row > numRows) return;
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (rows[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  starts[row] = static_cast<uint32_t>(low);
}

template <typename T, int kLanes>
struct alignas(sizeof(T) * kLanes) Pack {
  T values[kLanes];
};

// Rows of `width` packs; a row of threads for each row of the result.
template <typename T, int kLanes>
__global__ void addKernel(const uint32_t* starts, const uint32_t* positions, const Pack<T, kLanes>* update,
                          Pack<T, kLanes>* result, int64_t outer, int64_t rows, int64_t count, int64_t width) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (at >= outer * rows) return;
  const int64_t entry = at / rows, row = at - entry * rows;
  const uint32_t begin = starts[row], end = starts[row + 1];
  for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
    const Pack<T, kLanes>* from = update + entry * count * width + column;
    float sums[kLanes] = {};
#pragma unroll 4
    for (uint32_t i = begin; i < end; ++i) {
      const Pack<T, kLanes> pack = from[positions[i] * width];
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += toFloat(pack.values[lane]);
    }
    Pack<T, kLanes> pack;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) pack.values[lane] = rounded<T>(sums[lane]);
    result[at * width + column] = pack;
  }
}

template <typename T, int kLanes>
cudaError_t addAs(cudaStream_t stream, const Indices& indices, const ScatterProblem& p, const uint32_t* starts,
                  const uint32_t* positions) {
  using Packed = Pack<T, kLanes>;
  const int64_t width = p.inner / kLanes;
  const dim3 threads = threadsFor(width);
  return launch(addKernel<T, kLanes>, gridOf(p.outer * indices.rows, threads.y, threads), stream, starts, positions,
                static_cast<const Packed*>(p.update), static_cast<Packed*>(p.result), p.outer, indices.rows,
                indices.count, width);
}

template <typename T>
cudaError_t addRows(cudaStream_t stream, const Indices& indices, const ScatterProblem& p, const uint32_t* starts,
                    const uint32_t* positions) {
  constexpr int kLanes = 16 / sizeof(T);
  const bool whole = p.inner % kLanes == 0 &&
                     (reinterpret_cast<uintptr_t>(p.update) | reinterpret_cast<uintptr_t>(p.result)) % 16 == 0;
  return whole ? addAs<T, kLanes>(stream, indices, p, starts, positions)
               : addAs<T, 1>(stream, indices, p, starts, positions);
}

}  // namespace

cudaError_t gather(cudaStream_t stream, const Indices& indices, const GatherProblem& p) {
  const uintptr_t units = p.slice | reinterpret_cast<uintptr_t>(p.data) | reinterpret_cast<uintptr_t>(p.result);
  if (units % 16 == 0) return gatherAs<uint4>(stream, indices, p);
  if (units % 8 == 0) return gatherAs<uint2>(stream, indices, p);
  if (units % 4 == 0) return gatherAs<uint32_t>(stream, indices, p);
  if (units % 2 == 0) return gatherAs<uint16_t>(stream, indices, p);
  return gatherAs<uint8_t>(stream, indices, p);
}

cudaError_t scatterAdd(cudaStream_t stream, const Indices& indices, const ScatterProblem& p) {
  const plan::ScatterScratch layout = plan::scatterScratch(indices.rows, indices.count);
  auto words = [&](int64_t offset) { return reinterpret_cast<uint32_t*>(p.scratch + offset); };
  Sorted from{words(layout.rows[0]), words(layout.positions[0])}, to{words(layout.rows[1]), words(layout.positions[1])};
  uint32_t *counts = words(layout.counts), *starts = words(layout.starts);
  const int64_t tiles = (indices.count + kTile - 1) / kTile;
  const Grid ofTiles = gridOf(tiles, 1, dim3(kBlockThreads));
  cudaError_t error =
      launch(rowsKernel, gridOf(indices.count, kBlockThreads, dim3(kBlockThreads)), stream, indices, from);
  for (int shift = 0; error == cudaSuccess && shift < 32 && (indices.rows - 1) >> shift > 0; shift += kDigitBits) {
    error = launch(countKernel, ofTiles, stream, from.rows, indices.count, shift, counts);
    if (error == cudaSuccess) error = launch(placesKernel, {dim3(1), dim3(kBlockThreads)}, stream, counts, tiles);
    if (error == cudaSuccess) error = launch(moveKernel, ofTiles, stream, from, to, indices.count, shift, counts);
    const Sorted sorted = to;
    to = from;
    from = sorted;
  }
  if (error == cudaSuccess)
    error = launch(startsKernel, gridOf(indices.rows + 1, kBlockThreads, dim3(kBlockThreads)), stream, from.rows,
                   indices.count, indices.rows, starts);
  if (error != cudaSuccess) return error;
  return p.half ? addRows<Half>(stream, indices, p, starts, from.positions)
                : addRows<float>(stream, indices, p, starts, from.positions);
}

}  // namespace sheaf::cuda
