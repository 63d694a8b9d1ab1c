#include "runtime/plan/Tiles.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "runtime/plan/Saturating.h"

namespace sheaf::plan {
namespace {

int64_t ceilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t roundUp(int64_t a, int64_t multiple) {
  return ceilDiv(a, multiple) * multiple;
}

// Multiplications of a tile, at least: some 20 us.
constexpr double kSmallProduct = 2e6;

// oneDNN's AVX-512 kernel computes 48 columns by 8 rows in registers: other widths waste part of them.
constexpr int64_t kRegisterColumns = 48, kRegisterRows = 8;

// Likely numbers of threads.
constexpr int kThreads[] = {2, 4, 8};

// Threads waiting for the last of `tiles` tiles: the mean over likely numbers of threads of the share they lose. The
// product is as large as `whole` tiles, of which the last ones may be smaller.
double imbalance(double tiles, double whole) {
  double sum = 0;
  for (int threads : kThreads) sum += std::ceil(tiles / threads) * threads / whole - 1;
  return sum / std::size(kThreads);
}

// oneDNN's AVX2 kernels pack no operands where 1 / rows + 1 / columns is at least this: nocopy_checker_avx2() in
// src/cpu/x64/gemm/gemm_driver.cpp of 2.6.3.
constexpr double kNoCopyThreshold = 0.0038;

// Returns the fewest columns of a tile of so many rows, or the fewest rows of so many columns, for which AVX2 does not
// use its no-copy kernel; `size` if there are none.
int64_t minPackedSide(int64_t other, int64_t unit, int64_t size) {
  const double left = kNoCopyThreshold - 1.0 / static_cast<double>(other);
  return left <= 1.0 / static_cast<double>(size) ? size
                                                 : std::min(roundUp(static_cast<int64_t>(1 / left) + 1, unit), size);
}

// Returns the share of a product's multiplications that are in tiles of AVX2's no-copy kernel.
double noCopyShare(int64_t m, int64_t n, GemmTile tile) {
  double sum = 0;
  for (bool lastRows : {false, true})
    for (bool lastColumns : {false, true}) {
      const int64_t rows = lastRows ? m % tile.rows : tile.rows,
                    columns = lastColumns ? n % tile.columns : tile.columns;
      if (rows == 0 || columns == 0 || !usesNoCopyKernel(CpuIsa::kAvx2, rows, columns)) continue;
      sum += static_cast<double>(lastRows ? rows : m - m % rows) *
             static_cast<double>(lastColumns ? columns : n - n % columns);
    }
  return sum / (static_cast<double>(m) * static_cast<double>(n));
}

// Each tile packs its operands again: measured on Zen 5, that costs as much as so many more rows and columns, most
// where packing transposes. An imbalance counts less than that, because most runs have two threads a rank or four.
double packingCost(bool transposeA, bool transposeB) {
  return transposeB ? 28 : transposeA ? 22 : 12;
}
constexpr double kImbalance = 0.3;

constexpr int64_t kParts = 16;

bool isSmall(int64_t rows, int64_t columns, int64_t k) {
  return double(rows) * columns * k < kSmallProduct;
}

// Returns the tile of an f32 product by AVX2 that is not small: the tile of AVX-512, or, where the no-copy kernel is
// slow, one that uses it less.
GemmTile avx2Tile(int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB) {
  // The extra time of the no-copy kernel, as a share. A transposed: 5 to 24 % on an Emerald Rapids, and its tiles took
  // 25 to 120 % longer than the whole product on a Zen 3, most where rows are a multiple of 4 KiB apart (perhaps
  // because their lines share few sets of the caches; not verified). B transposed: some 10 % on both. Neither: none.
  const double noCopyCost = transposeA ? 0.25 : transposeB ? 0.1 : 0;
  const double packing = packingCost(transposeA, transposeB);
  const GemmTile avx512Tile = gemmTile(CpuIsa::kAvx512, m, n, k, batch, transposeA, transposeB, false);
  const double avx512Share = noCopyShare(m, n, avx512Tile);
  if (noCopyCost * avx512Share == 0) return avx512Tile;
  auto costOf = [&](GemmTile tile, double share) {
    const double tiles = double(batch) * ceilDiv(m, tile.rows) * ceilDiv(n, tile.columns);
    const double whole = double(batch) * m * n / (double(tile.rows) * tile.columns);
    return packing / tile.rows + packing / tile.columns + kImbalance * imbalance(tiles, whole) + noCopyCost * share;
  };
  GemmTile best = avx512Tile;
  double bestCost = costOf(avx512Tile, avx512Share);
  const uint64_t room = sgemmPackingBytes(avx512Tile.rows, avx512Tile.columns, k);
  auto consider = [&](int64_t rows, int64_t columns) {
    const double share = noCopyShare(m, n, {rows, columns});
    if (share >= avx512Share || sgemmPackingBytes(rows, columns, k, CpuIsa::kAvx2) > room) return;
    if (const double cost = costOf({rows, columns}, share); cost < bestCost) bestCost = cost, best = {rows, columns};
  };
  for (int64_t i = 1; i <= kParts; ++i) {
    const int64_t rows = std::min(roundUp(ceilDiv(m, i), kRegisterRows), m);
    const int64_t columns = std::min(roundUp(ceilDiv(n, i), kRegisterColumns), n);
    for (int64_t j = 1; j <= kParts; ++j) consider(rows, std::min(roundUp(ceilDiv(n, j), kRegisterColumns), n));
    consider(rows, minPackedSide(rows, kRegisterColumns, n));
    consider(minPackedSide(columns, kRegisterRows, m), columns);
  }
  return best;
}

}  // namespace

GemmTile gemmTile(CpuIsa isa, int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB,
                  bool half) {
  auto fits = [&](int64_t rows, int64_t columns) { return !half || double(rows) * columns <= kHalfGemmScratch; };
  if (double(m) * n * k < 2 * kSmallProduct && fits(m, n)) return {m, n};
  if (isa == CpuIsa::kAvx2 && !half) return avx2Tile(m, n, k, batch, transposeA, transposeB);
  const double packing = packingCost(transposeA, transposeB);
  // f32: into 1 to 16 parts each way. bf16: with sides of at most 768, 720, ..., 48, because a tile is bounded.
  constexpr int64_t kHalfSide = 48;
  auto parts = [half](int64_t size, int64_t i) { return half ? ceilDiv(size, kHalfSide * (kParts - i)) : i + 1; };
  GemmTile best{m, n};
  double bestCost = 1e30;
  for (int64_t i = 0; i < kParts; ++i) {
    const int64_t rows = std::min(roundUp(ceilDiv(m, parts(m, i)), kRegisterRows), m);
    for (int64_t j = 0; j < kParts; ++j) {
      const int64_t columns = std::min(roundUp(ceilDiv(n, parts(n, j)), kRegisterColumns), n);
      if (!fits(rows, columns)) continue;
      if (bestCost < 1e30 && isSmall(rows, columns, k)) break;
      const double tiles = double(batch) * ceilDiv(m, rows) * ceilDiv(n, columns);
      const double cost = packing / rows + packing / columns + kImbalance * imbalance(tiles, tiles);
      if (cost < bestCost) bestCost = cost, best = {rows, columns};
    }
  }
  return best;
}

bool usesNoCopyKernel(CpuIsa isa, int64_t rows, int64_t columns) {
  return isa == CpuIsa::kAvx2 &&
         1.0 / static_cast<double>(rows) + 1.0 / static_cast<double>(columns) >= kNoCopyThreshold;
}

uint64_t sgemmPackingBytes(int64_t m, int64_t n, int64_t k, CpuIsa isa) {
  // oneDNN packs a block of each operand: up to 384 rows of a, 9,984 columns of b, 384 deep on AVX-512, and 256 on
  // AVX2, padded to whole registers and a depth of at least 128. Measured on 2.6.3 over 1,500 shapes, the sum of its
  // allocations never exceeded this bound, and reached 0.93 of it on AVX-512 and 0.89 on AVX2.
  const uint64_t depth = std::clamp<int64_t>(saturatingAdd(k, 16), 144, isa == CpuIsa::kAvx2 ? 272 : 512);
  const uint64_t rows = std::clamp<int64_t>(m, 1, 512) + 64, columns = std::clamp<int64_t>(n, 1, 10240) + 64;
  return (rows + columns) * depth * sizeof(float) + (64 << 10);
}

int64_t convPixels(int64_t patch, int64_t pixels) {
  // The unrolled columns and the result's tile stay in the second-level cache.
  int64_t fitting = std::max<int64_t>((64 << 10) / std::max<int64_t>(patch, 1) / 16 * 16, 16);
  return std::min(pixels, fitting);
}

int64_t gemmWorkspace(int64_t m, int64_t n, int64_t batch) {
  // A product whose depth is split keeps partial results there: of small ones, sixteen.
  constexpr int64_t kMost = 32 << 20, kLeast = 1 << 20, kPartials = 16;
  const int64_t result = saturatingMultiply(saturatingMultiply(saturatingMultiply(m, n), batch), sizeof(float));
  const int64_t partials = saturatingMultiply(result, kPartials);
  return partials >= kMost ? kMost : std::max(roundUp(partials, kDeviceAlignment), kLeast);
}

ScatterScratch scatterScratch(int64_t rows, int64_t count) {
  ScatterScratch scratch;
  int64_t end = 0;
  auto words = [&end](int64_t number) {
    const int64_t begin = end, bytes = saturatingMultiply(number, sizeof(uint32_t));
    end = saturatingAdd(end, bytes > INT64_MAX - kDeviceAlignment ? bytes : roundUp(bytes, kDeviceAlignment));
    return begin;
  };
  for (int64_t& array : scratch.rows) array = words(count);
  for (int64_t& array : scratch.positions) array = words(count);
  scratch.counts = words(saturatingMultiply(256, ceilDiv(count, kScatterTile)));
  scratch.starts = words(saturatingAdd(rows, 1));
  scratch.bytes = end;
  return scratch;
}

int64_t topKLines(int64_t lines, int64_t n) {
  constexpr int64_t kElements = 4 << 20;  // 64 MiB of scratch
  return std::clamp<int64_t>(kElements / std::max<int64_t>(n, 1), 1, std::max<int64_t>(lines, 1));
}

ConvScratch convScratch(int64_t images, int64_t columnRows, int64_t pixels) {
  constexpr int64_t kBytes = 64 << 20, kWorkspace = 32 << 20;
  const int64_t one = saturatingMultiply(saturatingMultiply(columnRows, pixels), sizeof(float));
  const int64_t together = std::clamp<int64_t>(kBytes / std::max<int64_t>(one, 1), 1, std::max<int64_t>(images, 1));
  const int64_t bytes = saturatingMultiply(one, together);
  return {together, bytes > INT64_MAX - kDeviceAlignment ? bytes : roundUp(bytes, kDeviceAlignment), kWorkspace};
}

}  // namespace sheaf::plan
