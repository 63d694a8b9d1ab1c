#include "runtime/device/cuda/kernels/Reduce.h"

#include <cuda_fp16.h>

#include "runtime/device/cuda/Launch.h"

namespace sheaf::cuda {
namespace {

constexpr unsigned kThreads = 256;
// Enough to keep any GPU's memory busy; each thread goes on from there in strides.
constexpr uint64_t kMaxBlocks = 1024;
// Bytes that a thread reads of a rank at once.
constexpr unsigned kVector = 16;

// How elements are stored, and what they are summed in. Integers wrap.
template <typename T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static __device__ Sum widen(Stored value) { return value; }
  static __device__ Stored narrow(Sum value) { return value; }
  static __device__ Sum rounded(Sum value) { return value; }
};

struct Bf16 {
  using Stored = uint16_t;
  using Sum = float;
  static __device__ Sum widen(Stored value) { return __uint_as_float(static_cast<uint32_t>(value) << 16); }
  // Rounds to nearest, ties to even; a NaN stays one.
  static __device__ Stored narrow(Sum value) {
    uint32_t bits = __float_as_uint(value);
    return value != value ? static_cast<uint16_t>((bits >> 16) | 0x40)
                          : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  static __device__ Sum rounded(Sum value) { return widen(narrow(value)); }
};

struct F16 {
  using Stored = __half;
  using Sum = float;
  static __device__ Sum widen(Stored value) { return __half2float(value); }
  static __device__ Stored narrow(Sum value) { return __float2half_rn(value); }
  static __device__ Sum rounded(Sum value) { return widen(narrow(value)); }
};

template <typename Element>
struct alignas(kVector) Vector {
  typename Element::Stored values[kVector / sizeof(typename Element::Stored)];
};

// Levels of a tree of ranks, whose sums lie in registers: of 64 ranks, with a vector of elements a thread, and of any
// number, with one.
constexpr int kVectorLevels = 6, kAllLevels = 16;

// Adds up what load(rank, k) gives for the elements k < Width, in the order of Reduce.h; with `continues` to `total`.
// Sums that wait for their right half are a binary counter: level l holds one while bit l of the number of ranks seen
// is set. Every index is known when it is unrolled, so they are registers.
template <typename Element, int Levels, unsigned Width, typename Load>
__device__ void sumTree(int ranks, bool continues, Load load, typename Element::Sum (&total)[Width]) {
  using Sum = typename Element::Sum;
  const int subtree = ranks & -ranks;
  Sum waiting[Levels][Width];
  for (int rank = 0; rank < ranks; ++rank) {
    Sum sum[Width];
    for (unsigned k = 0; k < Width; ++k) sum[k] = load(rank, k);
    const int seen = rank % subtree;
    bool carries = true;
#pragma unroll
    for (int level = 0; level < Levels; ++level) {
      if (!carries || (1 << level) >= subtree) break;
      carries = seen >> level & 1;
      for (unsigned k = 0; k < Width; ++k)
        if (carries)
          sum[k] = Element::rounded(waiting[level][k] + sum[k]);
        else
          waiting[level][k] = sum[k];
    }
    if (!carries) continue;
    for (unsigned k = 0; k < Width; ++k)
      total[k] = rank < subtree && !continues ? sum[k] : Element::rounded(total[k] + sum[k]);
  }
}

template <typename Element, int Levels>
__global__ void __launch_bounds__(kThreads)
    sumKernel(RankSources sources, std::byte* destination, uint64_t count, bool aligned) {
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;
  constexpr unsigned kWidth = kVector / sizeof(Stored);
  constexpr bool kVectors = Levels <= kVectorLevels;
  const uint64_t whole = kVectors && aligned ? count / kWidth : 0,
                 threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t self = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (kVectors)
    for (uint64_t i = self; i < whole; i += threads) {
      Sum sums[kWidth] = {};
      Vector<Element> vector;
      if (sources.continues) {
        vector = reinterpret_cast<const Vector<Element>*>(destination)[i];
        for (unsigned k = 0; k < kWidth; ++k) sums[k] = Element::widen(vector.values[k]);
      }
      sumTree<Element, Levels>(
          sources.ranks, sources.continues,
          [&](int rank, unsigned k) {
            if (k == 0) vector = reinterpret_cast<const Vector<Element>*>(sources.of(rank))[i];
            return Element::widen(vector.values[k]);
          },
          sums);
      for (unsigned k = 0; k < kWidth; ++k) vector.values[k] = Element::narrow(sums[k]);
      reinterpret_cast<Vector<Element>*>(destination)[i] = vector;
    }
  for (uint64_t i = whole * kWidth + self; i < count; i += threads) {
    Sum sum[1] = {};
    if (sources.continues) sum[0] = Element::widen(reinterpret_cast<const Stored*>(destination)[i]);
    sumTree<Element, Levels>(
        sources.ranks, sources.continues,
        [&](int rank, unsigned) { return Element::widen(reinterpret_cast<const Stored*>(sources.of(rank))[i]); }, sum);
    reinterpret_cast<Stored*>(destination)[i] = Element::narrow(sum[0]);
  }
}

template <typename Element>
cudaError_t sum(const RankSources& sources, std::byte* destination, uint64_t count, cudaStream_t stream) {
  constexpr uint64_t kWidth = kVector / sizeof(typename Element::Stored);
  uintptr_t bits = reinterpret_cast<uintptr_t>(destination);
  for (int rank = 0; rank < sources.ranks; ++rank) bits |= reinterpret_cast<uintptr_t>(sources.of(rank));
  bool aligned = bits % kVector == 0;
  uint64_t work = aligned ? (count + kWidth - 1) / kWidth : count;
  uint64_t needed = (work + kThreads - 1) / kThreads;
  unsigned blocks = static_cast<unsigned>(needed < kMaxBlocks ? needed : kMaxBlocks);
  const auto kernel =
      sources.ranks <= 1 << kVectorLevels ? sumKernel<Element, kVectorLevels> : sumKernel<Element, kAllLevels>;
  return launch(kernel, {dim3(blocks), dim3(kThreads)}, stream, sources, destination, count, aligned);
}

}  // namespace

cudaError_t sumOverRanks(SumType type, const RankSources& sources, std::byte* destination, uint64_t count,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  switch (type) {
    case SumType::kF32:
      return sum<Plain<float>>(sources, destination, count, stream);
    case SumType::kF64:
      return sum<Plain<double>>(sources, destination, count, stream);
    case SumType::kBf16:
      return sum<Bf16>(sources, destination, count, stream);
    case SumType::kF16:
      return sum<F16>(sources, destination, count, stream);
    case SumType::kI32:
      return sum<Plain<uint32_t>>(sources, destination, count, stream);
    case SumType::kI64:
      return sum<Plain<uint64_t>>(sources, destination, count, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace sheaf::cuda
