#include "runtime/device/cuda/kernels/Indexing.h"

#include <type_traits>

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"
#include "runtime/device/cuda/kernels/Sort.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cuda {
namespace {

// The place that index i names: a row of the entry and the element that have the index. Row 0, and a finding, if there
// is none.
__device__ inline int64_t placeOf(const Indices& indices, int64_t i) {
  const int64_t value =
      indices.wide ? static_cast<const int64_t*>(indices.data)[i] : static_cast<const int32_t*>(indices.data)[i];
  int64_t row = value < 0 ? value + indices.rows : value;
  if (value < -indices.rows || value >= indices.rows) {
    atomicCAS(reinterpret_cast<unsigned long long*>(indices.finding), 0ull, indices.outOfRange);
    row = 0;
  }
  if (indices.outer == 1 && indices.inner == 1) return row;
  const int64_t number = i / indices.inner, entry = number / indices.count;
  return (entry * indices.rows + row) * indices.inner + (i - number * indices.inner);
}

// Slices of `width` vectors; a row of threads for each slice.
template <typename Vector>
__global__ void gatherKernel(const Indices indices, const Vector* data, Vector* result, int64_t slices, int64_t width) {
  const int64_t slice = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (slice >= slices) return;
  const int64_t outer = slice / indices.all(), place = placeOf(indices, slice - outer * indices.all());
  const Vector* from = data + (outer * indices.places() + place) * width;
  Vector* to = result + slice * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

template <typename Vector>
cudaError_t gatherAs(cudaStream_t stream, const Indices& indices, const GatherProblem& p) {
  const int64_t width = p.slice / static_cast<int64_t>(sizeof(Vector)), slices = p.outer * indices.all();
  const dim3 threads = threadsFor(width);
  return launch(gatherKernel<Vector>, gridOf(slices, threads.y, threads), stream, indices,
                reinterpret_cast<const Vector*>(p.data), reinterpret_cast<Vector*>(p.result), slices, width);
}

__global__ void placesKernel(const Indices indices, Sorted to) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (i >= indices.all()) return;
  to.keys[i] = static_cast<uint32_t>(placeOf(indices, i));
  to.positions[i] = static_cast<uint32_t>(i);
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
cudaError_t addAs(cudaStream_t stream, const Indices& indices, const ScatterAddProblem& p, const uint32_t* starts,
                  const uint32_t* positions) {
  using Packed = Pack<T, kLanes>;
  const int64_t width = p.inner / kLanes;
  const dim3 threads = threadsFor(width);
  return launch(addKernel<T, kLanes>, gridOf(p.outer * indices.rows, threads.y, threads), stream, starts, positions,
                static_cast<const Packed*>(p.update), static_cast<Packed*>(p.result), p.outer, indices.rows,
                indices.count, width);
}

template <typename T>
cudaError_t addRows(cudaStream_t stream, const Indices& indices, const ScatterAddProblem& p, const uint32_t* starts,
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

namespace {

// What goes to each place: positions[starts[place]] to positions[starts[place + 1] - 1], in the order of the indices.
struct Grouped {
  const uint32_t *starts, *positions;
};

cudaError_t group(cudaStream_t stream, const Indices& indices, std::byte* scratch, Grouped& grouped) {
  const int64_t count = indices.all(), places = indices.places();
  const plan::ScatterScratch layout = plan::scatterScratch(places, count);
  auto words = [&](int64_t offset) { return reinterpret_cast<uint32_t*>(scratch + offset); };
  Sorted sorted{words(layout.rows[0]), words(layout.positions[0])},
      other{words(layout.rows[1]), words(layout.positions[1])};
  cudaError_t error = launch(placesKernel, gridOf(count, kBlockThreads, dim3(kBlockThreads)), stream, indices, sorted);
  int bits = 0;
  while (bits < 32 && (places - 1) >> bits > 0) ++bits;
  if (error == cudaSuccess) error = sortByKeys(stream, sorted, other, count, bits, words(layout.counts));
  uint32_t* starts = words(layout.starts);
  if (error == cudaSuccess)
    error = launch(startsKernel, gridOf(places + 1, kBlockThreads, dim3(kBlockThreads)), stream, sorted.keys, count,
                   places, starts);
  grouped = {starts, sorted.positions};
  return error;
}

// What becomes of an element x that meets an update y. Integers wrap.
template <int kKind, typename T>
__device__ inline T combined(T x, T y) {
  switch (static_cast<ScatterKind>(kKind)) {
    case ScatterKind::kReplace:
      return y;
    case ScatterKind::kMin:
      return x != x || x < y ? x : y;
    case ScatterKind::kMax:
      return x != x || x > y ? x : y;
    case ScatterKind::kAdd:
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) + static_cast<std::make_unsigned_t<T>>(y));
      else
        return x + y;
    case ScatterKind::kMul:
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) * static_cast<std::make_unsigned_t<T>>(y));
      else
        return x * y;
  }
  return y;
}

// A place of the result has `inner` elements, each with a thread, which takes the updates in order.
template <typename T, int kKind>
__global__ void scatterKernel(const Grouped grouped, const T* update, const T* data, T* result, int64_t outer,
                              int64_t places, int64_t count, int64_t inner) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  if (at >= outer * places * inner) return;
  const int64_t row = at / inner, column = at - row * inner, entry = row / places, place = row - entry * places;
  const T* from = update + entry * count * inner + column;
  const uint32_t end = grouped.starts[place + 1];
  uint32_t i = grouped.starts[place];
  T value = data ? data[at] : T(0);
  if (kKind == static_cast<int>(ScatterKind::kReplace) && i < end) i = end - 1;  // the last one stays
  for (; i < end; ++i) value = combined<kKind>(value, from[grouped.positions[i] * inner]);
  result[at] = value;
}

template <typename T, int kKind>
cudaError_t scatterAs(cudaStream_t stream, const Indices& indices, const ScatterProblem& p, const Grouped& grouped) {
  const int64_t elements = p.outer * indices.places() * p.inner;
  return launch(scatterKernel<T, kKind>, gridOf(elements, kBlockThreads, dim3(kBlockThreads)), stream, grouped,
                static_cast<const T*>(p.update), static_cast<const T*>(p.data), static_cast<T*>(p.result), p.outer,
                indices.places(), indices.all(), p.inner);
}

template <typename T>
cudaError_t scatterOf(cudaStream_t stream, const Indices& indices, const ScatterProblem& p, const Grouped& grouped) {
  switch (p.kind) {
    case ScatterKind::kAdd:
      return scatterAs<T, static_cast<int>(ScatterKind::kAdd)>(stream, indices, p, grouped);
    case ScatterKind::kMul:
      return scatterAs<T, static_cast<int>(ScatterKind::kMul)>(stream, indices, p, grouped);
    case ScatterKind::kMin:
      return scatterAs<T, static_cast<int>(ScatterKind::kMin)>(stream, indices, p, grouped);
    case ScatterKind::kMax:
      return scatterAs<T, static_cast<int>(ScatterKind::kMax)>(stream, indices, p, grouped);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t scatterAdd(cudaStream_t stream, const Indices& indices, const ScatterAddProblem& p) {
  Grouped grouped;
  if (const cudaError_t error = group(stream, indices, p.scratch, grouped); error != cudaSuccess) return error;
  return withType(p.type, [&](auto type) {
    return addRows<decltype(type)>(stream, indices, p, grouped.starts, grouped.positions);
  });
}

cudaError_t scatter(cudaStream_t stream, const Indices& indices, const ScatterProblem& p) {
  constexpr int kReplace = static_cast<int>(ScatterKind::kReplace);
  Grouped grouped;
  if (const cudaError_t error = group(stream, indices, p.scratch, grouped); error != cudaSuccess) return error;
  if (p.kind == ScatterKind::kReplace) switch (p.elementBytes) {
      case 1:
        return scatterAs<uint8_t, kReplace>(stream, indices, p, grouped);
      case 2:
        return scatterAs<uint16_t, kReplace>(stream, indices, p, grouped);
      case 4:
        return scatterAs<uint32_t, kReplace>(stream, indices, p, grouped);
      default:
        return scatterAs<uint64_t, kReplace>(stream, indices, p, grouped);
    }
  switch (p.type) {
    case ScatterType::kF64:
      return scatterOf<double>(stream, indices, p, grouped);
    case ScatterType::kI64:
      return scatterOf<int64_t>(stream, indices, p, grouped);
    case ScatterType::kI32:
      return scatterOf<int32_t>(stream, indices, p, grouped);
    default:
      return scatterOf<float>(stream, indices, p, grouped);
  }
}

}  // namespace sheaf::cuda
