// Scores are computed again from query, key and the stored log-sum-exp, once by each of the two kernels.
#include "runtime/device/cuda/kernels/AttentionTiles.h"

namespace sheaf::cuda {
namespace {

// Shared memory of both kernels: two tiles that a block keeps, then stages of two tiles that stream past.
template <typename T, int kWidth>
struct Gradient : TileSizes<T, kWidth> {
  using Sizes = TileSizes<T, kWidth>;
  static constexpr int kKept = Sizes::kRows * Sizes::kStride, kPassing = Sizes::kStreamed * Sizes::kStride;
  static constexpr size_t kTileBytes = (2 * kKept + Sizes::kStages * 2 * kPassing) * sizeof(T);
  // Then, for each stage, log-sum-exp, delta and base of the queries that pass; then what f32 warps turn around.
  static constexpr size_t kRowFloats = Sizes::kStages * 3 * Sizes::kStreamed;
  static constexpr size_t kBytes =
      kTileBytes + (kRowFloats + kAttentionWarps * Sizes::stage(Sizes::kStreamed)) * sizeof(float);
};

// A warp for each query of each head.
template <typename T>
__global__ void __launch_bounds__(kAttentionThreads) deltaKernel(const AttentionProblem p) {
  const int lane = threadIdx.x % kWarp;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kAttentionWarps + threadIdx.x / kWarp;
  if (item >= p.b * p.s * p.h) return;
  const int64_t head = item % p.h, token = item / p.h;
  const T* result = static_cast<const T*>(p.result.data) + token * p.result.row + head * p.e;
  const T* gradient = static_cast<const T*>(p.gradient.data) + token * p.gradient.row + head * p.e;
  float sum = 0;
  for (int64_t i = lane; i < p.e; i += kWarp) sum += toFloat(result[i]) * toFloat(gradient[i]);
  for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, distance);
  if (lane == 0) p.delta[(token / p.s * p.h + head) * p.s + token % p.s] = sum;
}

// A block is a tile of keys of one key head: the queries of all query heads that read it pass by. Its warps hold the
// scores turned around, keys down and queries across.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads, 2) keyGradientKernel(const AttentionProblem p) {
  using Sizes = Gradient<T, kWidth>;
  constexpr int kRows = Sizes::kRows, kStreamed = Sizes::kStreamed, kColumns = Sizes::kColumns,
                kStride = Sizes::kStride, kStages = Sizes::kStages;
  SHEAF_DYNAMIC_SHARED(T, keys);
  T *values = keys + Sizes::kKept, *passing = values + Sizes::kKept;
  float* passingRows = reinterpret_cast<float*>(passing + kStages * 2 * Sizes::kPassing);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int rowOfWarp = warp / Sizes::kParts * kWarpRows, columnOfWarp = warp % Sizes::kParts * kColumns;
  float* stage = passingRows + Sizes::kRowFloats + warp * Sizes::stage(kStreamed);

  const int64_t groups = p.b * p.g, first = blockIdx.x / groups * kRows;
  const int64_t batch = blockIdx.x % groups / p.g, group = blockIdx.x % p.g, heads = p.h / p.g;
  const int rows = static_cast<int>(least<int64_t>(kRows, p.t - first));
  const int d = static_cast<int>(p.d), e = static_cast<int>(p.e);
  loadTile<T, kRows, kWidth>(keys, static_cast<const T*>(p.key.data) + (batch * p.t + first) * p.key.row + group * p.d,
                             p.key.row, rows, d, p.vectors);
  loadTile<T, kRows, kWidth>(values,
                             static_cast<const T*>(p.value.data) + (batch * p.t + first) * p.value.row + group * p.e,
                             p.value.row, rows, e, p.vectors);

  // The tiles of queries that see one of the keys or more, head by head.
  const int64_t firstTile = p.causal ? most<int64_t>(first - (p.t - p.s), 0) / kStreamed : 0;
  const int64_t end = p.window ? least(p.s, most<int64_t>(first + rows - 1 - (p.t - p.s) + p.window, 0)) : p.s;
  const int64_t tiles = most<int64_t>((end + kStreamed - 1) / kStreamed - firstTile, 0), steps = tiles * heads;
  auto load = [&](int64_t step) {
    if (step < steps) {
      const int64_t head = group * heads + step / tiles, query = (firstTile + step % tiles) * kStreamed;
      const int count = static_cast<int>(least<int64_t>(kStreamed, p.s - query));
      const int64_t token = batch * p.s + query;
      T* tile = passing + step % kStages * 2 * Sizes::kPassing;
      loadTile<T, kStreamed, kWidth>(tile, static_cast<const T*>(p.query.data) + token * p.query.row + head * p.d,
                                     p.query.row, count, d, p.vectors);
      loadTile<T, kStreamed, kWidth>(tile + Sizes::kPassing,
                                     static_cast<const T*>(p.gradient.data) + token * p.gradient.row + head * p.e,
                                     p.gradient.row, count, e, p.vectors);
      float* ofRows = passingRows + step % kStages * 3 * kStreamed;
      const int64_t at = (batch * p.h + head) * p.s + query;
      for (int i = threadIdx.x; i < kStreamed; i += kAttentionThreads) {
        ofRows[i] = i < count ? p.logSumExp[at + i] : -INFINITY;
        ofRows[kStreamed + i] = i < count ? p.delta[at + i] : 0.0f;
        if (p.mask) ofRows[2 * kStreamed + i] = i < count ? p.base[at + i] : 0.0f;
      }
    }
    commitCopies();
  };
  load(0);

  float keySums[kColumns / 8][4] = {}, valueSums[kColumns / 8][4] = {};
  for (int64_t step = 0; step < steps; ++step) {
    if constexpr (kStages == 2) load(step + 1);
    awaitCopies<kStages - 1>();
    __syncthreads();
    const T *queries = passing + step % kStages * 2 * Sizes::kPassing, *gradients = queries + Sizes::kPassing;
    const float* ofRows = passingRows + step % kStages * 3 * kStreamed;
    const int64_t query = (firstTile + step % tiles) * kStreamed, key = first + rowOfWarp;
    const Scores scores(p, batch, group * heads + step / tiles);
    float weights[kStreamed / 8][4] = {}, slopes[kStreamed / 8][4] = {};
    multiplyRows<kStreamed / 8, kWidth>(weights, keys + rowOfWarp * kStride, queries);
    const bool whole = scores.whole(query, kStreamed, key, kWarpRows);
#pragma unroll
    for (int j = 0; j < kStreamed / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int down = lane / 4 + i / 2 * 8, across = j * 8 + lane % 4 * 2 + i % 2;
        const float logSumExp = ofRows[across];
        const bool seen = logSumExp != -INFINITY && (whole || scores.sees(query + across, key + down));
        const float base = p.mask ? ofRows[2 * kStreamed + across] : 0.0f;
        weights[j][i] =
            seen ? exponential2(scores.score(weights[j][i], query + across, key + down) - base - inBase2(logSumExp))
                 : 0.0f;
      }
    multiplyWeights<kWidth, kColumns / 8, kStreamed>(valueSums, weights, gradients + columnOfWarp, stage);
    multiplyRows<kStreamed / 8, kWidth>(slopes, values + rowOfWarp * kStride, gradients);
#pragma unroll
    for (int j = 0; j < kStreamed / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // A weight of nothing has no gradient, whatever the others are.
        const float slope = slopes[j][i] - ofRows[kStreamed + j * 8 + lane % 4 * 2 + i % 2];
        slopes[j][i] = weights[j][i] == 0 ? 0.0f : weights[j][i] * slope;
      }
    multiplyWeights<kWidth, kColumns / 8, kStreamed>(keySums, slopes, queries + columnOfWarp, stage);
    __syncthreads();
    if constexpr (kStages == 1) load(step + 1);
  }
  awaitCopies<0>();

  const float ones[2] = {1, 1}, scales[2] = {p.scale, p.scale};
  const int64_t token = batch * p.t + first + rowOfWarp;
  T* keyGradient = static_cast<T*>(p.keyGradient.data) + token * p.keyGradient.row + group * p.d;
  T* valueGradient = static_cast<T*>(p.valueGradient.data) + token * p.valueGradient.row + group * p.e;
  storeRows(keySums, scales, keyGradient + columnOfWarp, p.keyGradient.row, rows - rowOfWarp, d - columnOfWarp);
  storeRows(valueSums, ones, valueGradient + columnOfWarp, p.valueGradient.row, rows - rowOfWarp, e - columnOfWarp);
}

// A block is a tile of queries of one head: the keys pass by.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kAttentionThreads, sizeof(T) == 2 && kWidth <= 64 ? 3 : 2)
    queryGradientKernel(const AttentionProblem p) {
  using Sizes = Gradient<T, kWidth>;
  constexpr int kRows = Sizes::kRows, kStreamed = Sizes::kStreamed, kColumns = Sizes::kColumns,
                kStride = Sizes::kStride, kStages = Sizes::kStages;
  SHEAF_DYNAMIC_SHARED(T, queries);
  T *gradients = queries + Sizes::kKept, *passing = gradients + Sizes::kKept;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int rowOfWarp = warp / Sizes::kParts * kWarpRows, columnOfWarp = warp % Sizes::kParts * kColumns;
  float* stage = reinterpret_cast<float*>(passing + kStages * 2 * Sizes::kPassing) + Sizes::kRowFloats +
                 warp * Sizes::stage(kStreamed);

  const int64_t heads = p.b * p.h, tiles = (p.s + kRows - 1) / kRows;
  const int64_t first = (tiles - 1 - blockIdx.x / heads) * kRows;
  const int64_t batch = blockIdx.x % heads / p.h, head = blockIdx.x % p.h, group = head / (p.h / p.g);
  const int rows = static_cast<int>(least<int64_t>(kRows, p.s - first));
  const int64_t limit = keysSeen(p, first + rows), start = firstKeySeen(p, first, kStreamed);
  const int64_t token = batch * p.s + first;
  const int d = static_cast<int>(p.d), e = static_cast<int>(p.e);
  const Scores scores(p, batch, head);
  loadTile<T, kRows, kWidth>(queries, static_cast<const T*>(p.query.data) + token * p.query.row + head * p.d,
                             p.query.row, rows, d, p.vectors);
  loadTile<T, kRows, kWidth>(gradients, static_cast<const T*>(p.gradient.data) + token * p.gradient.row + head * p.e,
                             p.gradient.row, rows, e, p.vectors);
  auto load = [&](int64_t from) {
    if (from < limit) {
      const int count = static_cast<int>(least<int64_t>(kStreamed, p.t - from));
      T* tile = passing + from / kStreamed % kStages * 2 * Sizes::kPassing;
      loadTile<T, kStreamed, kWidth>(tile,
                                     static_cast<const T*>(p.key.data) + (batch * p.t + from) * p.key.row + group * p.d,
                                     p.key.row, count, d, p.vectors);
      loadTile<T, kStreamed, kWidth>(
          tile + Sizes::kPassing,
          static_cast<const T*>(p.value.data) + (batch * p.t + from) * p.value.row + group * p.e, p.value.row, count, e,
          p.vectors);
    }
    commitCopies();
  };
  load(start);

  float logSumExp[2], delta[2], base[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int at = rowOfWarp + lane / 4 + row * 8;
    const int64_t query = (batch * p.h + head) * p.s + first + at;
    logSumExp[row] = at < rows ? p.logSumExp[query] : -INFINITY;
    delta[row] = at < rows ? p.delta[query] : 0.0f;
    base[row] = p.mask && at < rows ? p.base[query] : 0.0f;
  }
  float sums[kColumns / 8][4] = {};
  for (int64_t from = start; from < limit; from += kStreamed) {
    if constexpr (kStages == 2) load(from + kStreamed);
    awaitCopies<kStages - 1>();
    __syncthreads();
    const T *keys = passing + from / kStreamed % kStages * 2 * Sizes::kPassing, *values = keys + Sizes::kPassing;
    const int64_t query = first + rowOfWarp;
    float weights[kStreamed / 8][4] = {}, slopes[kStreamed / 8][4] = {};
    multiplyRows<kStreamed / 8, kWidth>(weights, queries + rowOfWarp * kStride, keys);
    multiplyRows<kStreamed / 8, kWidth>(slopes, gradients + rowOfWarp * kStride, values);
    const bool whole = scores.whole(query, kWarpRows, from, kStreamed);
#pragma unroll
    for (int j = 0; j < kStreamed / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = query + lane / 4 + i / 2 * 8, column = from + j * 8 + lane % 4 * 2 + i % 2;
        const bool seen = logSumExp[i / 2] != -INFINITY && (whole || scores.sees(row, column));
        const float weight =
            seen ? exponential2(scores.score(weights[j][i], row, column) - base[i / 2] - inBase2(logSumExp[i / 2]))
                 : 0.0f;
        slopes[j][i] = weight == 0 ? 0.0f : weight * (slopes[j][i] - delta[i / 2]);
      }
    multiplyWeights<kWidth, kColumns / 8, kStreamed>(sums, slopes, keys + columnOfWarp, stage);
    __syncthreads();
    if constexpr (kStages == 1) load(from + kStreamed);
  }
  awaitCopies<0>();

  const float scales[2] = {p.scale, p.scale};
  T* queryGradient = static_cast<T*>(p.queryGradient.data) + (token + rowOfWarp) * p.queryGradient.row + head * p.d;
  storeRows(sums, scales, queryGradient + columnOfWarp, p.queryGradient.row, rows - rowOfWarp, d - columnOfWarp);
}

template <typename T, int kWidth>
cudaError_t run(cudaStream_t stream, const AttentionProblem& p) {
  using Sizes = Gradient<T, kWidth>;
  auto grid = [](int64_t blocks, size_t bytes) {
    return Grid{dim3(static_cast<unsigned>(blocks)), dim3(kAttentionThreads), bytes};
  };
  const int64_t deltas = (p.b * p.s * p.h + kAttentionWarps - 1) / kAttentionWarps;
  const int64_t keyBlocks = (p.t + Sizes::kRows - 1) / Sizes::kRows * p.b * p.g,
                queryBlocks = (p.s + Sizes::kRows - 1) / Sizes::kRows * p.b * p.h;
  if (most(deltas, most(keyBlocks, queryBlocks)) > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (cudaError_t error = launch(deltaKernel<T>, grid(deltas, 0), stream, p); error != cudaSuccess) return error;
  if (cudaError_t error = launch(keyGradientKernel<T, kWidth>, grid(keyBlocks, Sizes::kBytes), stream, p);
      error != cudaSuccess)
    return error;
  return launch(queryGradientKernel<T, kWidth>, grid(queryBlocks, Sizes::kBytes), stream, p);
}

template <typename T>
cudaError_t runOfType(cudaStream_t stream, const AttentionProblem& p) {
  const int64_t width = p.d > p.e ? p.d : p.e;
  return width <= 64 ? run<T, 64>(stream, p) : width <= 128 ? run<T, 128>(stream, p) : run<T, 256>(stream, p);
}

}  // namespace

cudaError_t attentionGrad(cudaStream_t stream, AttentionProblem p) {
  setSeen(p);
  p.base = p.delta + p.b * p.h * p.s;
  if (cudaError_t error = setBases(stream, p); error != cudaSuccess) return error;
  p.vectors =
      aligned(p, p.query, p.d) && aligned(p, p.key, p.d) && aligned(p, p.value, p.e) && aligned(p, p.gradient, p.e);
  return withType(p.type, [&](auto type) { return runOfType<decltype(type)>(stream, p); });
}

}  // namespace sheaf::cuda
