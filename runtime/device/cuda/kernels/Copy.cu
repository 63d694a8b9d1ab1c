#include "runtime/device/cuda/kernels/Copy.h"

#include <algorithm>

#include "runtime/device/cuda/kernels/Grids.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"

namespace sheaf::cuda {
namespace {

using plan::CopyDimension;

constexpr int kMostOuter = 16;

// Dimensions around the innermost ones, that a thread's element or tile is found in; the innermost last.
struct Outer {
  int count = 0;
  CopyDimension dimensions[kMostOuter];
};

struct Place {
  int64_t source, destination;
};

// Where entry `index` of the outer dimensions begins. Most indices fit into 32 bits, whose division is much shorter.
__device__ inline Place placeOf(const Outer& outer, int64_t index) {
  Place place{0, 0};
  for (int i = outer.count; i-- > 0;) {
    const CopyDimension& dimension = outer.dimensions[i];
    int64_t rest;
    if ((index | dimension.size) >> 32 == 0)
      rest = static_cast<uint32_t>(index) / static_cast<uint32_t>(dimension.size);
    else
      rest = index / dimension.size;
    const int64_t at = index - rest * dimension.size;
    place.source += at * dimension.source;
    place.destination += at * dimension.destination;
    index = rest;
  }
  return place;
}

constexpr int kPerThread = 4;

// A row of threads for a part of an innermost run; `parts` of them make the run.
template <typename Vector>
__global__ void runsKernel(const Vector* source, Vector* destination, const Outer outer, const CopyDimension inner,
                           int64_t runs, int64_t parts) {
  const int64_t part = blockIdx.x % parts, run = blockIdx.x / parts * blockDim.y + threadIdx.y;
  if (run >= runs) return;
  const Place place = placeOf(outer, run);
  const int64_t begin = part * blockDim.x * kPerThread,
                end = least<int64_t>(begin + blockDim.x * kPerThread, inner.size);
#pragma unroll
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
    destination[place.destination + i * inner.destination] = source[place.source + i * inner.source];
}

constexpr int kTransposed = 32, kTransposedRows = 8;

// A tile of 32 by 32 through shared memory, so that both loads and stores are of neighbouring elements.
template <typename Element>
__global__ void transposeKernel(const Element* source, Element* destination, const Outer outer,
                                const CopyDimension inner, const CopyDimension across) {
  __shared__ Element tile[kTransposed][kTransposed + 1];
  const int64_t down = (inner.size + kTransposed - 1) / kTransposed,
                right = (across.size + kTransposed - 1) / kTransposed;
  const int64_t block = blockIdx.x / right, i = block % down * kTransposed, j = blockIdx.x % right * kTransposed;
  const Place place = placeOf(outer, block / down);
  const int x = threadIdx.x;
  for (int y = threadIdx.y; y < kTransposed; y += kTransposedRows)
    if (i + y < inner.size && j + x < across.size) tile[y][x] = source[place.source + (i + y) * inner.source + j + x];
  __syncthreads();
  for (int y = threadIdx.y; y < kTransposed; y += kTransposedRows)
    if (i + x < inner.size && j + y < across.size)
      destination[place.destination + (j + y) * across.destination + i + x] = tile[x][y];
}

struct Shape {
  Outer outer;
  CopyDimension inner{1, 1, 1}, across{1, 1, 1};
  bool transposed = false;
  int64_t entries = 1;  // of the outer dimensions
};

template <typename Element>
cudaError_t transpose(cudaStream_t stream, const std::byte* source, std::byte* destination, const Shape& shape) {
  const int64_t tiles = (shape.inner.size + kTransposed - 1) / kTransposed *
                        ((shape.across.size + kTransposed - 1) / kTransposed) * shape.entries;
  return launch(transposeKernel<Element>, gridOf(tiles, 1, dim3(kTransposed, kTransposedRows)), stream,
                reinterpret_cast<const Element*>(source), reinterpret_cast<Element*>(destination), shape.outer,
                shape.inner, shape.across);
}

template <typename Vector>
cudaError_t copyRuns(cudaStream_t stream, const std::byte* source, std::byte* destination, const Shape& shape) {
  const dim3 threads = threadsFor(shape.inner.size);
  const int64_t each = static_cast<int64_t>(threads.x) * kPerThread, parts = (shape.inner.size + each - 1) / each;
  const int64_t rows = (shape.entries + threads.y - 1) / threads.y;
  return launch(runsKernel<Vector>, gridOf(rows * parts, 1, threads), stream, reinterpret_cast<const Vector*>(source),
                reinterpret_cast<Vector*>(destination), shape.outer, shape.inner, shape.entries, parts);
}

// The widest vector that divides a contiguous run and all places where runs begin; bytes.
int64_t vectorBytes(const std::byte* source, const std::byte* destination, int64_t width, const Shape& shape) {
  int64_t all = shape.inner.size * width | reinterpret_cast<intptr_t>(source) | reinterpret_cast<intptr_t>(destination);
  for (int i = 0; i < shape.outer.count; ++i)
    all |= shape.outer.dimensions[i].source * width | shape.outer.dimensions[i].destination * width;
  int64_t bytes = 16;
  while (bytes > width && all % bytes != 0) bytes /= 2;
  return bytes;
}

}  // namespace

cudaError_t copyStrided(cudaStream_t stream, const std::byte* source, std::byte* destination, int64_t width,
                        const std::vector<CopyDimension>& all) {
  std::vector<CopyDimension> dimensions = all;
  Shape shape;
  if (!dimensions.empty()) {
    shape.inner = dimensions.back();
    dimensions.pop_back();
  }
  if (shape.inner.destination == 1 && shape.inner.source != 1) {
    auto across =
        std::find_if(dimensions.begin(), dimensions.end(), [](const CopyDimension& d) { return d.source == 1; });
    if (across != dimensions.end()) {
      shape.transposed = true;
      shape.across = *across;
      dimensions.erase(across);
    }
  }
  if (dimensions.size() > kMostOuter) return cudaErrorInvalidValue;
  for (const CopyDimension& dimension : dimensions) {
    shape.outer.dimensions[shape.outer.count++] = dimension;
    shape.entries *= dimension.size;
  }
  if (shape.transposed) {
    switch (width) {
      case 8:
        return transpose<uint64_t>(stream, source, destination, shape);
      case 4:
        return transpose<uint32_t>(stream, source, destination, shape);
      case 2:
        return transpose<uint16_t>(stream, source, destination, shape);
      default:
        return transpose<uint8_t>(stream, source, destination, shape);
    }
  }
  if (shape.inner.source == 1 && shape.inner.destination == 1) {
    const int64_t bytes = vectorBytes(source, destination, width, shape), factor = bytes / width;
    shape.inner.size /= factor;
    for (int i = 0; i < shape.outer.count; ++i) {
      shape.outer.dimensions[i].source /= factor;
      shape.outer.dimensions[i].destination /= factor;
    }
    width = bytes;
  }
  switch (width) {
    case 16:
      return copyRuns<uint4>(stream, source, destination, shape);
    case 8:
      return copyRuns<uint2>(stream, source, destination, shape);
    case 4:
      return copyRuns<uint32_t>(stream, source, destination, shape);
    case 2:
      return copyRuns<uint16_t>(stream, source, destination, shape);
    default:
      return copyRuns<uint8_t>(stream, source, destination, shape);
  }
}

}  // namespace sheaf::cuda
