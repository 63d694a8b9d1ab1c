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

// Each tile packs its operands again: measured on Zen 5, that costs as much as so many more rows and columns, most
// where packing transposes. An imbalance counts less than that, because most runs have two threads a rank or four.
double packingCost(bool transposeA, bool transposeB) {
  return transposeB ? 28 : transposeA ? 22 : 12;
}
constexpr double kImbalance = 0.3;

constexpr int64_t kParts = 16;

// A tile in registers of Sheaf's own products, of which a panel of b is as wide.
constexpr int64_t kSgemmTileRows = 6, kSgemmPanel = 16;

bool isSmall(int64_t rows, int64_t columns, int64_t k) {
  return double(rows) * columns * k < kSmallProduct;
}

}  // namespace

GemmTile gemmTile(int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB, bool half) {
  auto fits = [&](int64_t rows, int64_t columns) { return !half || double(rows) * columns <= kHalfGemmScratch; };
  if (double(m) * n * k < 2 * kSmallProduct && fits(m, n)) return {m, n};
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

uint64_t sgemmPackingBytes(int64_t m, int64_t n, int64_t k) {
  // oneDNN packs a block of each operand: up to 384 rows of a, 9,984 columns of b, 384 deep on AVX-512, padded to whole
  // registers and a depth of at least 128. Measured on 2.6.3 over 1,500 shapes, the sum of its allocations never
  // exceeded this bound, and reached 0.93 of it.
  const uint64_t depth = std::clamp<int64_t>(saturatingAdd(k, 16), 144, 512);
  const uint64_t rows = std::clamp<int64_t>(m, 1, 512) + 64, columns = std::clamp<int64_t>(n, 1, 10240) + 64;
  return (rows + columns) * depth * sizeof(float) + (64 << 10);
}

uint64_t sgemmRoom(int64_t m, int64_t n, int64_t k) {
  // Panels of b are kept where several blocks of rows read them.
  const int64_t columns = m <= kSgemmGroupRows ? kSgemmGroup
                          : m <= kSgemmRows    ? kSgemmPanel
                                               : roundUp(std::min(n, kSgemmColumns), kSgemmPanel);
  return (std::min(m, kSgemmRows) + columns) * std::min(k, kSgemmDepth) * sizeof(float);
}

GemmTile threadTile(int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB, int threads) {
  if (double(m) * n * k < 2 * kSmallProduct) return {m, n};
  // A tile's packing and cold caches, as so many more rows and columns; and the wait of a thread for another at the
  // end, because other programs run as well, as a share of a tile. Of four settings these were the fastest on an
  // Emerald Rapids with two threads.
  const double packingA = transposeA ? 24 : 8, packingB = transposeB ? 32 : 16;
  const double waiting = threads > 1 ? 0.03 : 0;
  const GemmTile declared = gemmTile(m, n, k, batch, transposeA, transposeB, false);
  const uint64_t room = sgemmPackingBytes(declared.rows, declared.columns, k);
  const int64_t most = 2 * std::max<int64_t>(threads, kParts);
  GemmTile best = declared;
  double bestCost = 1e30;
  for (int64_t i = 1; i <= most; ++i) {
    const int64_t rows = std::min(roundUp(ceilDiv(m, i), kSgemmTileRows), m);
    for (int64_t j = 1; j <= most; ++j) {
      const int64_t columns = std::min(roundUp(ceilDiv(n, j), kSgemmPanel), n);
      if (sgemmRoom(rows, columns, k) > room || (bestCost < 1e30 && isSmall(rows, columns, k))) continue;
      const double tiles = double(batch) * ceilDiv(m, rows) * ceilDiv(n, columns);
      const double whole = double(batch) * m * n / (double(rows) * columns);
      const double cost = packingA / columns + packingB / rows + std::ceil(tiles / threads) * threads / whole - 1 +
                          waiting * threads / tiles;
      if (cost < bestCost) bestCost = cost, best = {rows, columns};
    }
  }
  return best;
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
