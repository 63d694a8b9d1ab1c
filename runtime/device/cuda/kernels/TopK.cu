#include "runtime/device/cuda/kernels/TopK.h"

#include <cstring>
#include <type_traits>

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"
#include "runtime/device/cuda/kernels/Sort.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cuda {
namespace {

// An unsigned number whose order is that of the elements: zeros of both signs are one, and all NaN are the greatest.
template <typename T>
__device__ inline uint64_t keyOf(T value, bool largest) {
  using Key = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Key kSign = Key(1) << (8 * sizeof(T) - 1);
  Key key;
  if constexpr (std::is_integral_v<T>) {
    key = static_cast<Key>(value) ^ kSign;
  } else if (value != value) {
    key = ~Key(0);
  } else {
    value += T(0);  // -0 becomes 0
    memcpy(&key, &value, sizeof key);
    key = (key & kSign) != 0 ? ~key : key | kSign;
  }
  return largest ? static_cast<Key>(~key) : key;
}

// Element i of a line.
__device__ inline int64_t elementOf(const TopKShape& p, int64_t size, int64_t line, int64_t i) {
  const int64_t outer = line / p.inner;
  return (outer * size + i) * p.inner + (line - outer * p.inner);
}

struct Found {
  uint64_t key;
  int64_t index;
};
__device__ inline bool precedes(const Found& a, const Found& b) {
  return a.key < b.key || (a.key == b.key && a.index < b.index);
}

// A warp for each line: the next one is the first of those after the one before.
template <typename T>
__global__ void scanKernel(const TopKShape p, const T* source, int64_t* result) {
  const int lane = threadIdx.x % kWarp;
  const int64_t line = static_cast<int64_t>(blockIdx.x) * (kBlockThreads / kWarp) + threadIdx.x / kWarp;
  if (line >= p.outer * p.inner) return;
  Found last{0, -1};
  for (int64_t turn = 0; turn < p.k; ++turn) {
    Found best{~uint64_t{0}, p.n};
    for (int64_t i = lane; i < p.n; i += kWarp) {
      const Found own{keyOf(source[elementOf(p, p.n, line, i)], p.largest), i};
      if (precedes(last, own) && precedes(own, best)) best = own;
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const Found other{__shfl_xor_sync(kWholeWarp, best.key, distance),
                        __shfl_xor_sync(kWholeWarp, best.index, distance)};
      if (precedes(other, best)) best = other;
    }
    if (lane == 0) result[elementOf(p, p.k, line, turn)] = best.index;
    last = best;
  }
}

// The number of a position's line among those that are sorted together, or a half of its element's key.
enum class Part { kLow, kHigh, kLine };

template <typename T>
__global__ void keysKernel(const TopKShape p, const T* source, int64_t firstLine, int64_t count, Part part, bool first,
                           Sorted to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (at >= count) return;
  if (first) to.positions[at] = static_cast<uint32_t>(at);
  const int64_t position = to.positions[at], line = position / p.n;
  if (part == Part::kLine) {
    to.keys[at] = static_cast<uint32_t>(line);
    return;
  }
  const uint64_t key = keyOf(source[elementOf(p, p.n, firstLine + line, position - line * p.n)], p.largest);
  to.keys[at] = static_cast<uint32_t>(part == Part::kHigh ? key >> 32 : key);
}

__global__ void takeKernel(const TopKShape p, int64_t firstLine, int64_t lines, const uint32_t* positions,
                           int64_t* result) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (at >= lines * p.k) return;
  const int64_t line = at / p.k, i = at - line * p.k;
  result[elementOf(p, p.k, firstLine + line, i)] = positions[line * p.n + i] - line * p.n;
}

}  // namespace

template <typename T>
cudaError_t topK(cudaStream_t stream, const TopKShape& p, const T* source, int64_t* result, std::byte* scratch) {
  const int64_t all = p.outer * p.inner;
  if (p.k <= plan::kTopKScans)
    return launch(scanKernel<T>, gridOf(all, kBlockThreads / kWarp, dim3(kBlockThreads)), stream, p, source, result);
  const int64_t together = plan::topKLines(all, p.n);
  const plan::ScatterScratch layout = plan::scatterScratch(0, together * p.n);
  auto words = [&](int64_t offset) { return reinterpret_cast<uint32_t*>(scratch + offset); };
  for (int64_t firstLine = 0; firstLine < all; firstLine += together) {
    const int64_t lines = least(together, all - firstLine), count = lines * p.n;
    const Grid grid = gridOf(count, kBlockThreads, dim3(kBlockThreads));
    Sorted sorted{words(layout.rows[0]), words(layout.positions[0])},
        other{words(layout.rows[1]), words(layout.positions[1])};
    bool first = true;
    auto sortBy = [&](Part part, int bits) {
      cudaError_t error = launch(keysKernel<T>, grid, stream, p, source, firstLine, count, part, first, sorted);
      first = false;
      return error == cudaSuccess ? sortByKeys(stream, sorted, other, count, bits, words(layout.counts)) : error;
    };
    // From the least to the most significant part, as in any radix sort.
    int ofLines = 0;
    while ((lines - 1) >> ofLines > 0) ++ofLines;
    cudaError_t error = sortBy(Part::kLow, 32);
    if (error == cudaSuccess && sizeof(T) == 8) error = sortBy(Part::kHigh, 32);
    if (error == cudaSuccess && ofLines > 0) error = sortBy(Part::kLine, ofLines);
    if (error == cudaSuccess)
      error = launch(takeKernel, gridOf(lines * p.k, kBlockThreads, dim3(kBlockThreads)), stream, p, firstLine, lines,
                     sorted.positions, result);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template cudaError_t topK(cudaStream_t, const TopKShape&, const float*, int64_t*, std::byte*);
template cudaError_t topK(cudaStream_t, const TopKShape&, const double*, int64_t*, std::byte*);
template cudaError_t topK(cudaStream_t, const TopKShape&, const int32_t*, int64_t*, std::byte*);
template cudaError_t topK(cudaStream_t, const TopKShape&, const int64_t*, int64_t*, std::byte*);

}  // namespace sheaf::cuda
