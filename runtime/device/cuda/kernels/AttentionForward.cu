#include "runtime/device/cuda/kernels/AttentionTiles.h"

namespace sheaf::cuda {
namespace {

template <typename T, int kWidth>
struct Forward : TileSizes<T, kWidth> {
  using Sizes = TileSizes<T, kWidth>;
  static constexpr size_t kBytes = (Sizes::kRows + 2 * Sizes::kKeys) * Sizes::kStride * sizeof(T) +
                                   kAttentionWarps * Sizes::stage(Sizes::kKeys) * sizeof(float);
};

// The running maximum and sum of the rows lane / 4 and lane / 4 + 8 of a warp; sums are this lane's part.
struct Running {
  float maximum[2] = {-FLT_MAX, -FLT_MAX};
  float sum[2] = {0, 0};
};

// Replaces dot products by exp(score - maximum), and rescales what was summed before.
template <int kScores, int kEights>
__device__ inline void softmaxTile(const Scores& scores, int64_t query, int64_t key, bool whole,
                                   float (&tile)[kScores][4], float (&sums)[kEights][4], Running& running) {
  const int lane = threadIdx.x % kWarp;
  float top[2] = {running.maximum[0], running.maximum[1]};
#pragma unroll
  for (int j = 0; j < kScores; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = query + lane / 4 + i / 2 * 8, column = key + j * 8 + lane % 4 * 2 + i % 2;
      tile[j][i] = whole || scores.sees(row, column) ? scores.score(tile[j][i], row, column) : -INFINITY;
      top[i / 2] = fmaxf(top[i / 2], tile[j][i]);
    }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], __shfl_xor_sync(kWholeWarp, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(kWholeWarp, top[row], 2));
    const float keep = exponential2(running.maximum[row] - top[row]);
    running.maximum[row] = top[row];
    running.sum[row] *= keep;
#pragma unroll
    for (int j = 0; j < kEights; ++j) sums[j][row * 2] *= keep, sums[j][row * 2 + 1] *= keep;
  }
#pragma unroll
  for (int j = 0; j < kScores; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile[j][i] = exponential2(tile[j][i] - top[i / 2]);
      running.sum[i / 2] += tile[j][i];
    }
}

// A block is a tile of queries of one head.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads) forwardKernel(const AttentionProblem p) {
  using Sizes = Forward<T, kWidth>;
  constexpr int kRows = Sizes::kRows, kKeys = Sizes::kKeys, kColumns = Sizes::kColumns, kStride = Sizes::kStride;
  SHEAF_DYNAMIC_SHARED(T, queries);
  T *keys = queries + kRows * kStride, *values = keys + kKeys * kStride;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int rowOfWarp = warp / Sizes::kParts * kWarpRows, columnOfWarp = warp % Sizes::kParts * kColumns;
  float* stage = reinterpret_cast<float*>(values + kKeys * kStride) + warp * Sizes::stage(kKeys);

  // The last queries see the most keys under a causal mask: they come first, so that the blocks end even.
  const int64_t heads = p.b * p.h, tiles = (p.s + kRows - 1) / kRows;
  const int64_t first = (tiles - 1 - blockIdx.x / heads) * kRows;
  const int64_t batch = blockIdx.x % heads / p.h, head = blockIdx.x % p.h, group = head / (p.h / p.g);
  const int rows = static_cast<int>(least<int64_t>(kRows, p.s - first));
  // Of 32 bits: registers are what the widest heads have least of.
  const int limit = static_cast<int>(keysSeen(p, first + rows)),
            start = static_cast<int>(firstKeySeen(p, first, kKeys));
  const T* query = static_cast<const T*>(p.query.data) + (batch * p.s + first) * p.query.row + head * p.d;
  const T* key = static_cast<const T*>(p.key.data) + batch * p.t * p.key.row + group * p.d;
  const T* value = static_cast<const T*>(p.value.data) + batch * p.t * p.value.row + group * p.e;
  const Scores scores(p, batch, head);
  const int d = static_cast<int>(p.d), e = static_cast<int>(p.e);

  auto loadKeys = [&](int from) {
    if (from < limit)
      loadTile<T, kKeys, kWidth>(keys, key + from * p.key.row, p.key.row,
                                 static_cast<int>(least<int64_t>(kKeys, p.t - from)), d, p.vectors);
    commitCopies();
  };
  auto loadValues = [&](int from) {
    if (from < limit)
      loadTile<T, kKeys, kWidth>(values, value + from * p.value.row, p.value.row,
                                 static_cast<int>(least<int64_t>(kKeys, p.t - from)), e, p.vectors);
    commitCopies();
  };
  loadTile<T, kRows, kWidth>(queries, query, p.query.row, rows, d, p.vectors);
  loadKeys(start);
  loadValues(start);

  float sums[kColumns / 8][4] = {};
  Running running;
  // Keys of the next tile come while this one's weights are computed, values while its dot products are.
  for (int from = start; from < limit; from += kKeys) {
    float tile[kKeys / 8][4] = {};
    awaitCopies<1>();
    __syncthreads();
    multiplyRows<kKeys / 8, kWidth>(tile, queries + rowOfWarp * kStride, keys);
    __syncthreads();
    loadKeys(from + kKeys);
    softmaxTile(scores, first + rowOfWarp, from, scores.whole(first + rowOfWarp, kWarpRows, from, kKeys), tile, sums,
                running);
    awaitCopies<1>();
    __syncthreads();
    multiplyWeights<kWidth, kColumns / 8, kKeys>(sums, tile, values + columnOfWarp, stage);
    __syncthreads();
    loadValues(from + kKeys);
  }
  awaitCopies<0>();

  float factors[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float sum = running.sum[row];
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    factors[row] = sum == 0 ? 0.0f : 1 / sum;  // 0: it sees nothing
    const int at = rowOfWarp + lane / 4 + row * 8;
    if (lane % 4 == 0 && columnOfWarp == 0 && at < rows) {
      const int64_t query = (batch * p.h + head) * p.s + first + at;
      const float maximum = p.mask ? running.maximum[row] - p.base[query] : running.maximum[row];
      p.logSumExp[query] = sum == 0 ? -INFINITY : maximum * kLogOf2 + logf(sum);
    }
  }
  T* result = static_cast<T*>(p.result.data) + (batch * p.s + first + rowOfWarp) * p.result.row + head * p.e;
  storeRows(sums, factors, result + columnOfWarp, p.result.row, rows - rowOfWarp, e - columnOfWarp);
}

template <typename T, int kWidth>
cudaError_t run(cudaStream_t stream, const AttentionProblem& p) {
  using Sizes = Forward<T, kWidth>;
  const int64_t blocks = (p.s + Sizes::kRows - 1) / Sizes::kRows * p.b * p.h;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(forwardKernel<T, kWidth>, {dim3(static_cast<unsigned>(blocks)), dim3(kAttentionThreads), Sizes::kBytes},
                stream, p);
}

template <typename T>
cudaError_t runOfType(cudaStream_t stream, const AttentionProblem& p) {
  const int64_t width = p.d > p.e ? p.d : p.e;
  return width <= 64 ? run<T, 64>(stream, p) : width <= 128 ? run<T, 128>(stream, p) : run<T, 256>(stream, p);
}

}  // namespace

cudaError_t attention(cudaStream_t stream, AttentionProblem p) {
  setSeen(p);
  p.base = p.logSumExp;  // each base is read before its log-sum-exp is written
  if (cudaError_t error = setBases(stream, p); error != cudaSuccess) return error;
  p.vectors = aligned(p, p.query, p.d) && aligned(p, p.key, p.d) && aligned(p, p.value, p.e);
  return withType(p.type, [&](auto type) { return runOfType<decltype(type)>(stream, p); });
}

}  // namespace sheaf::cuda
