// What the kernels of attention share: tiles in shared memory, and products of tiles by a warp. A warp owns 16 rows of
// a tile of scores, spread over its lanes as the matrix instructions do it, in f32 too: of rows lane / 4 and lane / 4 +
// 8 a lane holds columns lane % 4 * 2 and the next one of each eight.
#pragma once

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "runtime/device/cuda/kernels/Attention.h"
#include "runtime/device/cuda/kernels/Intrinsics.h"
#include "runtime/plan/calls/HidingMask.h"

namespace sheaf::cuda {

constexpr int kAttentionThreads = 128, kAttentionWarps = kAttentionThreads / kWarp;
constexpr int kWarpRows = 16;
constexpr float kLog2OfE = 1.44269504f, kLogOf2 = 0.693147181f;

// How heads of at most kWidth elements are cut, chosen so that neither registers nor 96 KiB of shared memory overflow.
// The accumulators of a wide head are shared by two warps with the same rows, of which each computes all scores.
template <typename T, int kWidth>
struct TileSizes {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kParts = kWidth > 128 ? 2 : 1;
  static constexpr int kColumns = kWidth / kParts;                    // of the accumulators of a warp
  static constexpr int kRows = kAttentionWarps / kParts * kWarpRows;  // of a block
  static constexpr int kLanes = 16 / sizeof(T);
  static constexpr int kStride = kWidth + kLanes;  // so that eight rows of 16 bytes lie in different banks
  // Keys of a forward tile; rows of the operands that the backward kernels stream through, and how many of those tiles
  // are in shared memory at a time.
  static constexpr int kKeys = kHalf ? (kWidth > 128 ? 32 : 64) : 4096 / kWidth;
  static constexpr int kStreamed = kHalf ? (kWidth > 64 ? 32 : 64) : 2048 / kWidth;
  static constexpr int kStages = kHalf && kWidth <= 128 ? 2 : 1;
  // Where a warp of an f32 kernel turns scores around; floats.
  static constexpr int stage(int columns) { return kHalf ? 0 : kWarpRows * (columns + 4); }
};

// Loads `rows` rows of `width` elements, zeros beyond, by the whole block; asynchronously if `vectors`.
template <typename T, int kRows, int kWidth>
__device__ inline void loadTile(T* shared, const T* global, int64_t stride, int rows, int width, bool vectors) {
  using Sizes = TileSizes<T, kWidth>;
  if (vectors) {
    constexpr int kPerRow = kWidth / Sizes::kLanes;
    for (int i = threadIdx.x; i < kRows * kPerRow; i += kAttentionThreads) {
      const int row = i / kPerRow, column = i % kPerRow * Sizes::kLanes;
      const bool there = row < rows && column < width;
      copyAsync(shared + row * Sizes::kStride + column, there ? global + row * stride + column : global, there);
    }
    return;
  }
  for (int i = threadIdx.x; i < kRows * kWidth; i += kAttentionThreads) {
    const int row = i / kWidth, column = i % kWidth;
    shared[row * Sizes::kStride + column] =
        row < rows && column < width ? global[row * stride + column] : rounded<T>(0.0f);
  }
}

// sums += a b^T: a has 16 rows and b kEights * 8 rows of kWidth elements, in shared memory.
template <int kEights, int kWidth, typename T, std::enable_if_t<sizeof(T) == 2, int> = 0>
__device__ inline void multiplyRows(float (&sums)[kEights][4], const T* a, const T* b) {
  constexpr int kStride = TileSizes<T, kWidth>::kStride;
  const int lane = threadIdx.x % kWarp;
  const T* left = a + lane % 16 * kStride + lane / 16 * 8;
  const T* right = b + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < kWidth; k += 16) {
    uint32_t x[4];
    loadMatrices(x, left + k);
#pragma unroll
    for (int j = 0; j < kEights; j += 2) {
      uint32_t y[4];
      loadMatrices(y, right + j * 8 * kStride + k);
      multiply<T>(sums[j], x, y[0], y[1]);
      multiply<T>(sums[j + 1], x, y[2], y[3]);
    }
  }
}

template <int kEights, int kWidth>
__device__ inline void multiplyRows(float (&sums)[kEights][4], const float* a, const float* b) {
  constexpr int kStride = TileSizes<float, kWidth>::kStride;
  const int lane = threadIdx.x % kWarp;
  const float* left = a + lane / 4 * kStride;
  const float* right = b + lane % 4 * 2 * kStride;
#pragma unroll 2
  for (int k = 0; k < kWidth; k += 4) {
    float4 x[2], y[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = *reinterpret_cast<const float4*>(left + i * 8 * kStride + k);
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) y[i] = *reinterpret_cast<const float4*>(right + (j * 8 + i) * kStride + k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 &p = x[i / 2], &q = y[i % 2];
        sums[j][i] = multiplyAdd(p.x, q.x, sums[j][i]);
        sums[j][i] = multiplyAdd(p.y, q.y, sums[j][i]);
        sums[j][i] = multiplyAdd(p.z, q.z, sums[j][i]);
        sums[j][i] = multiplyAdd(p.w, q.w, sums[j][i]);
      }
    }
  }
}

// sums += weights b: the warp's 16 rows of kDepth weights are in its registers, b has kDepth rows of a tile that is
// kWidth wide, of which kEights * 8 columns count. `stage` is the warp's own.
template <int kWidth, int kEights, int kDepth, typename T, std::enable_if_t<sizeof(T) == 2, int> = 0>
__device__ inline void multiplyWeights(float (&sums)[kEights][4], const float (&weights)[kDepth / 8][4], const T* b,
                                       float*) {
  constexpr int kStride = TileSizes<T, kWidth>::kStride;
  const int lane = threadIdx.x % kWarp;
  const T* right = b + lane % 16 * kStride + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    const float(&low)[4] = weights[k / 8], (&high)[4] = weights[k / 8 + 1];
    const uint32_t x[4] = {packHalves<T>(low[0], low[1]), packHalves<T>(low[2], low[3]),
                           packHalves<T>(high[0], high[1]), packHalves<T>(high[2], high[3])};
#pragma unroll
    for (int j = 0; j < kEights; j += 2) {
      uint32_t y[4];
      loadTransposed(y, right + k * kStride + j * 8);
      multiply<T>(sums[j], x, y[0], y[1]);
      multiply<T>(sums[j + 1], x, y[2], y[3]);
    }
  }
}

template <int kWidth, int kEights, int kDepth>
__device__ inline void multiplyWeights(float (&sums)[kEights][4], const float (&weights)[kDepth / 8][4], const float* b,
                                       float* stage) {
  constexpr int kStride = TileSizes<float, kWidth>::kStride, kStageStride = kDepth + 4;
  const int lane = threadIdx.x % kWarp, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kDepth / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) stage[(row + i / 2 * 8) * kStageStride + j * 8 + column + i % 2] = weights[j][i];
  __syncwarp();
#pragma unroll 1
  for (int k = 0; k < kDepth; k += 4) {
    const float4 first = *reinterpret_cast<const float4*>(stage + row * kStageStride + k),
                 second = *reinterpret_cast<const float4*>(stage + (row + 8) * kStageStride + k);
    const float x[4] = {first.x, first.y, first.z, first.w}, z[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* line = b + (k + i) * kStride + column;
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const float2 y = *reinterpret_cast<const float2*>(line + j * 8);
        sums[j][0] = multiplyAdd(x[i], y.x, sums[j][0]);
        sums[j][1] = multiplyAdd(x[i], y.y, sums[j][1]);
        sums[j][2] = multiplyAdd(z[i], y.x, sums[j][2]);
        sums[j][3] = multiplyAdd(z[i], y.y, sums[j][3]);
      }
    }
  }
  __syncwarp();
}

// Stores the warp's 16 rows times a factor for rows lane / 4 and lane / 4 + 8, as far as there are rows and columns.
template <typename T, int kEights>
__device__ inline void storeRows(const float (&sums)[kEights][4], const float (&factors)[2], T* global, int64_t stride,
                                 int rows, int columns) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kEights; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = j * 8 + lane % 4 * 2 + i % 2;
      if (row < rows && column < columns) global[row * stride + column] = rounded<T>(sums[j][i] * factors[i / 2]);
    }
}

// A number in units of log2(e). What is finite stays so, because the largest negative numbers hide keys only where
// others are left.
__device__ inline float inBase2(float x) {
  const float result = x * kLog2OfE;
  return result < -FLT_MAX && x >= -FLT_MAX ? -FLT_MAX : result;
}

// Keys [0, result) are all that queries before `end` see.
__device__ inline int64_t keysSeen(const AttentionProblem& p, int64_t end) {
  return p.causal ? least(most<int64_t>(end + p.t - p.s, 0), p.t) : p.t;
}

// Queries from `begin` on see no key before this one, which begins a tile of `tile` keys.
__device__ inline int64_t firstKeySeen(const AttentionProblem& p, int64_t begin, int64_t tile) {
  return p.window ? most<int64_t>(begin + p.t - p.s + 1 - p.window, 0) / tile * tile : 0;
}

// The base of a query's scores in units of log2(e): the largest number of the mask among the keys that it sees if that
// hides them all, else 0. The log-sum-exp is of scores less this base.
__device__ inline float maskBase(float largest) {
  return largest <= plan::kHidingMask && largest >= -FLT_MAX ? inBase2(largest) : 0.0f;
}

// The scores of one query head as its warps see them. What all heads share stays in the kernel's parameters, which take
// no registers.
struct Scores {
  __device__ Scores(const AttentionProblem& p, int64_t batch, int64_t head)
      : p(p),
        mask(p.mask ? p.mask + batch * p.maskBatch + head * p.maskHead : nullptr),
        scale(mask ? p.scale : p.scale * kLog2OfE) {}

  __device__ bool sees(int64_t query, int64_t key) const {
    return query < p.s && key < p.t && static_cast<uint32_t>(query + p.ahead - key) < p.span;
  }
  // Whether all queries and keys of a tile see each other.
  __device__ bool whole(int64_t query, int rows, int64_t key, int columns) const {
    return query + rows <= p.s && sees(query, key + columns - 1) && sees(query + rows - 1, key);
  }
  // The score times log2(e) of a query that sees the key, from their dot product.
  __device__ float score(float product, int64_t query, int64_t key) const {
    return mask ? inBase2(product * scale + mask[query * p.t + key]) : product * scale;
  }

  const AttentionProblem& p;
  const float* mask;
  float scale;
};

// Sets the bases, a warp for each query of each head: its lanes read the mask together, up to the first key that is not
// hidden.
static __global__ void __launch_bounds__(kAttentionThreads) baseKernel(const AttentionProblem p) {
  const int lane = threadIdx.x % kWarp;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kAttentionWarps + threadIdx.x / kWarp;
  if (item >= p.b * p.h * p.s) return;
  const int64_t query = item % p.s, head = item / p.s % p.h, limit = keysSeen(p, query + 1);
  const float* mask = p.mask + item / p.s / p.h * p.maskBatch + head * p.maskHead + query * p.t;
  float largest = -INFINITY;
  for (int64_t key = firstKeySeen(p, query, 1); key < limit; key += kWarp) {
    if (key + lane < limit) largest = fmaxf(largest, mask[key + lane]);
    if (ballot(largest > -INFINITY && maskBase(largest) == 0)) break;
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
  if (lane == 0) p.base[item] = maskBase(largest);
}

inline cudaError_t setBases(cudaStream_t stream, const AttentionProblem& p) {
  if (!p.mask) return cudaSuccess;
  const int64_t blocks = (p.b * p.h * p.s + kAttentionWarps - 1) / kAttentionWarps;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(baseKernel, {dim3(static_cast<unsigned>(blocks)), dim3(kAttentionThreads), 0}, stream, p);
}

// Sets what the kernels take from the shape.
inline void setSeen(AttentionProblem& p) {
  p.ahead = p.causal ? p.t - p.s : p.t;
  p.span = static_cast<uint32_t>(p.window ? least(p.window, kMostTokens) : kMostTokens);
}

// Whether every address the kernels read from begins at a multiple of 16 bytes.
inline bool aligned(const AttentionProblem& p, const HeadRows& rows, int64_t width) {
  const int64_t lanes = p.type == FloatType::kF32 ? 4 : 8;
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.row % lanes == 0 && width % lanes == 0;
}

}  // namespace sheaf::cuda
