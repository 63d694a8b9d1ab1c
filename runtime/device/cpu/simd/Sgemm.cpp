// The structure is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM Transactions
// on Mathematical Software 34(3), 2008): blocks of both operands are packed for the caches, and a kernel computes a
// tile of the result in registers. Two things differ: the first tile of a panel packs the panel while it multiplies,
// and a is read in place where its lines are contiguous.
//
// This file is compiled without contraction: alpha times a sum is rounded before it is added.
#include "runtime/device/cpu/simd/Sgemm.h"

#include <immintrin.h>

#include "runtime/plan/Tiles.h"

namespace sheaf::cpu::simd {
namespace {

using plan::kSgemmColumns, plan::kSgemmDepth, plan::kSgemmGroup, plan::kSgemmGroupRows, plan::kSgemmRows;

// A tile has up to 6 x 16 elements: 12 of the 16 registers are sums, 2 hold b, the others an element of a.
constexpr int64_t kTileRows = 6, kLanes = 8, kTileColumns = 2 * kLanes;
static_assert(kSgemmRows % kTileRows == 0 && kSgemmColumns % kTileColumns == 0);

// Up to this depth a transposed a is read in place as well: its rows are few enough for the TLB.
constexpr int64_t kInPlaceDepth = 128;

constexpr int64_t kLine = 64;  // bytes of a cache line

int64_t min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Addresses to prefetch, one per four multiplications of a tile: `left` steps, then a jump and `period` steps again.
struct Prefetch {
  const char* at;
  int64_t step, left, period, jump;
};

// A tile of the result and a block of the operands along k. An element of a is a[row * aRow + k * aStep], one of b is
// b[k * bStep + column].
struct Tile {
  int64_t depth;
  const float* a;
  int64_t aRow, aStep;
  const float* b;
  int64_t bStep;
  float* packed;  // kPack copies b there
  Prefetch ahead;
  float alpha;
  bool accumulate;
  float* c;
  int64_t cRow;
  __m256i mask;  // the columns of the last vector, if it is not full
};

// A tile may pack b or prefetch while it multiplies.
enum Mode { kPlain, kPack, kPrefetch };

template <bool masked>
__m256 load(const float* from, __m256i mask) {
  return masked ? _mm256_maskload_ps(from, mask) : _mm256_loadu_ps(from);
}

// The loops over rows and vectors are unrolled so that sums stay in registers.
template <int rows, int vectors, bool masked, Mode mode>
[[gnu::always_inline]] inline void multiplyStep(Tile& t, __m256 (&sums)[rows][vectors]) {
  __m256 right[vectors];
  if constexpr (vectors > 1) right[0] = _mm256_loadu_ps(t.b);
  right[vectors - 1] = load<masked>(t.b + (vectors - 1) * kLanes, t.mask);
  if constexpr (mode == kPack) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) _mm256_storeu_ps(t.packed + j * kLanes, right[j]);
    t.packed += kTileColumns;
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
    const __m256 left = _mm256_broadcast_ss(t.a + i * t.aRow);
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) sums[i][j] = _mm256_fmadd_ps(left, right[j], sums[i][j]);
  }
  t.a += t.aStep;
  t.b += t.bStep;
}

template <int rows, int vectors, bool masked, Mode mode>
void multiplyTile(Tile& tile) {
  Tile t = tile;
  __m256 sums[rows][vectors];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
    __builtin_prefetch(t.c + i * t.cRow, 1);
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) sums[i][j] = _mm256_setzero_ps();
  }
  int64_t k = t.depth;
  if constexpr (mode == kPrefetch) {
    Prefetch& ahead = t.ahead;
    for (; k >= 4; k -= 4) {
      __builtin_prefetch(ahead.at);
      ahead.at += ahead.step;
      if (--ahead.left == 0) ahead.left = ahead.period, ahead.at += ahead.jump;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) multiplyStep<rows, vectors, masked, mode>(t, sums);
    }
    tile.ahead = ahead;
  }
#pragma GCC unroll 4
  for (; k > 0; --k) multiplyStep<rows, vectors, masked, mode>(t, sums);
  const __m256 alpha = _mm256_set1_ps(t.alpha);
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
    float* c = t.c + i * t.cRow;
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j, c += kLanes) {
      __m256 result = _mm256_mul_ps(sums[i][j], alpha);
      if (masked && j == vectors - 1) {
        if (t.accumulate) result = _mm256_add_ps(load<true>(c, t.mask), result);
        _mm256_maskstore_ps(c, t.mask, result);
      } else {
        if (t.accumulate) result = _mm256_add_ps(_mm256_loadu_ps(c), result);
        _mm256_storeu_ps(c, result);
      }
    }
  }
}

// Indexed by rows, vectors - 1, whether the last vector is masked, and mode.
using Kernel = void (*)(Tile&);
struct Kernels {
  Kernel of[kTileRows + 1][2][2][3];
};

template <int rows, int vectors, bool masked>
constexpr void fillModes(Kernels& kernels) {
  Kernel* of = kernels.of[rows][vectors - 1][masked];
  of[kPlain] = multiplyTile<rows, vectors, masked, kPlain>;
  of[kPack] = multiplyTile<rows, vectors, masked, kPack>;
  of[kPrefetch] = multiplyTile<rows, vectors, masked, kPrefetch>;
}

template <int rows>
constexpr void fill(Kernels& kernels) {
  fillModes<rows, 1, false>(kernels), fillModes<rows, 1, true>(kernels);
  fillModes<rows, 2, false>(kernels), fillModes<rows, 2, true>(kernels);
  if constexpr (rows > 1) fill<rows - 1>(kernels);
}

constexpr Kernels makeKernels() {
  Kernels kernels{};
  fill<kTileRows>(kernels);
  return kernels;
}

constexpr Kernels kKernels = makeKernels();

// Returns the rows of the next tile, of so many that are left. The last two tiles share them: a tile of three rows or
// fewer does not keep the multipliers busy.
int64_t tileRows(int64_t left) {
  if (left <= kTileRows) return left;
  return left >= kTileRows + 4 ? kTileRows : (left + 1) / 2;
}

// Packs a block of a that is stored transposed by tiles: of each step of k the rows of the tile. A row of storage is
// read at a time, because each lies on another page.
void packA(const float* a, int64_t lda, int64_t rows, int64_t depth, float* to) {
  // Tiles of all kTileRows rows, from which a whole vector can be read: the next step overwrites its last two floats.
  int64_t wide = 0, row = 0;
  while (tileRows(rows - row) == kTileRows && row + kLanes <= rows) row += kTileRows, ++wide;
  for (int64_t k = 0; k < depth - 1; ++k)
    for (int64_t tile = 0; tile < wide; ++tile)
      _mm256_storeu_ps(to + (tile * depth + k) * kTileRows, _mm256_loadu_ps(a + k * lda + tile * kTileRows));
  for (int64_t tile = 0; tile < wide; ++tile)
    for (int64_t i = 0; i < kTileRows; ++i)
      to[(tile * depth + depth - 1) * kTileRows + i] = a[(depth - 1) * lda + tile * kTileRows + i];
  to += row * depth;
  for (int64_t height; row < rows; row += height) {
    height = tileRows(rows - row);
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t i = 0; i < height; ++i) to[k * height + i] = a[k * lda + row + i];
    to += height * depth;
  }
}

// to[k * kTileColumns + j] = from[j * stride + k] for 8 x 8 elements
inline void transpose8(const float* from, int64_t stride, float* to) {
  for (int64_t k = 0; k < 8; k += 4, from += 4) {
    auto pair = [&](int64_t j) {
      return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + j * stride)),
                                  _mm_loadu_ps(from + (j + 4) * stride), 1);
    };
    const __m256 r0 = pair(0), r1 = pair(1), r2 = pair(2), r3 = pair(3);
    const __m256 low01 = _mm256_unpacklo_ps(r0, r1), high01 = _mm256_unpackhi_ps(r0, r1);
    const __m256 low23 = _mm256_unpacklo_ps(r2, r3), high23 = _mm256_unpackhi_ps(r2, r3);
    _mm256_storeu_ps(to + (k + 0) * kTileColumns, _mm256_shuffle_ps(low01, low23, 0x44));
    _mm256_storeu_ps(to + (k + 1) * kTileColumns, _mm256_shuffle_ps(low01, low23, 0xee));
    _mm256_storeu_ps(to + (k + 2) * kTileColumns, _mm256_shuffle_ps(high01, high23, 0x44));
    _mm256_storeu_ps(to + (k + 3) * kTileColumns, _mm256_shuffle_ps(high01, high23, 0xee));
  }
}

// Packs a panel of b that is stored transposed: to[k * kTileColumns + j] = b[j * ldb + k].
void packTransposedPanel(const float* b, int64_t ldb, int64_t columns, int64_t depth, float* to) {
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    const float* from = b + j * ldb;
    int64_t k = 0;
    for (; k + kLanes <= depth; k += kLanes) transpose8(from + k, ldb, to + k * kTileColumns + j);
    for (; k < depth; ++k)
      for (int64_t i = 0; i < kLanes; ++i) to[k * kTileColumns + j + i] = from[i * ldb + k];
  }
  for (; j < columns; ++j)
    for (int64_t k = 0; k < depth; ++k) to[k * kTileColumns + j] = b[j * ldb + k];
}

// Packs up to kSgemmGroup columns of b as panels: to[(panel * depth + k) * kTileColumns + column].
void packGroup(const float* b, int64_t ldb, int64_t columns, int64_t depth, float* to) {
  const int64_t whole = columns / kTileColumns * kTileColumns;
  for (int64_t k = 0; k < depth; ++k, b += ldb, to += kTileColumns) {
    for (int64_t j = 0; j < whole; j += kLanes)
      _mm256_storeu_ps(to + j / kTileColumns * kTileColumns * depth + j % kTileColumns, _mm256_loadu_ps(b + j));
    for (int64_t j = whole; j < columns; ++j) to[whole * depth + j - whole] = b[j];
  }
}

// A block of rows, a block of columns and a block of k, where each begins and its size.
struct Block {
  int64_t row, rows, column, columns, k, depth;
};

// Multiplies a block. `panels` holds packed b, a panel of kTileColumns after the other; if `reusesPanel` all use one
// place. With `packsB` they are packed here.
class BlockProduct {
 public:
  BlockProduct(const Sgemm& p, const Block& block, bool packsB, bool reusesPanel, float* packedA, float* panels)
      : p_(p), block_(block), packsB_(packsB), reusesPanel_(reusesPanel), panels_(panels) {
    tile_.depth = block.depth;
    tile_.alpha = p.alpha;
    tile_.accumulate = p.accumulate || block.k > 0;
    tile_.cRow = p.ldc;
    a_ = p.a + (p.transposeA ? block.k * p.lda + block.row : block.row * p.lda + block.k);
    tile_.aRow = p.transposeA ? 1 : p.lda;
    tile_.aStep = p.transposeA ? p.lda : 1;
    packedA_ = p.transposeA && block.depth > kInPlaceDepth;
    if (!packedA_) return;
    packA(a_, p.lda, block.rows, block.depth, packedA);
    a_ = packedA;
  }

  void run() {
    for (int64_t column = 0; column < block_.columns; column += kTileColumns) runPanel(column);
  }

 private:
  // Prepares tile_ for the panel at `column`. Returns the mode of its first tile.
  Mode beginPanel(int64_t column, int64_t width) {
    float* packed = panels_ + (reusesPanel_ ? 0 : column * block_.depth);
    const float* b = p_.b + (p_.transposeB ? (block_.column + column) * p_.ldb + block_.k
                                           : block_.k * p_.ldb + block_.column + column);
    tile_.b = packed;
    tile_.bStep = kTileColumns;
    if (!packsB_) {
      tile_.ahead = {reinterpret_cast<const char*>(packed + kTileColumns * block_.depth), kLine, block_.depth,
                     block_.depth, 0};
      return kPrefetch;
    }
    if (p_.transposeB) {
      packTransposedPanel(b, p_.ldb, width, block_.depth, packed);
      const int64_t lines = block_.depth < 16 ? 1 : block_.depth / 16;
      tile_.ahead = {reinterpret_cast<const char*>(b + kTileColumns * p_.ldb), kLine, lines, lines,
                     4 * p_.ldb - lines * kLine};
      return kPrefetch;
    }
    if (p_.m <= kSgemmGroupRows) {
      const int64_t at = column % kSgemmGroup, columns = min(block_.columns - column, kSgemmGroup);
      if (at == 0) packGroup(b, p_.ldb, columns, block_.depth, panels_);
      tile_.b = panels_ + at * block_.depth;
      return kPlain;
    }
    tile_.b = b;
    tile_.bStep = p_.ldb;
    tile_.packed = packed;
    tile_.ahead = {reinterpret_cast<const char*>(b + kTileColumns), 4 * p_.ldb, block_.depth, block_.depth, 0};
    return kPack;
  }

  void runPanel(int64_t column) {
    const int64_t width = min(block_.columns - column, kTileColumns);
    const int vectors = width > kLanes ? 2 : 1;
    const int64_t last = width - (vectors - 1) * kLanes;
    tile_.mask =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(last)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const bool masked = last < kLanes;
    Mode mode = beginPanel(column, width);
    // A tile prefetches a quarter of the next panel, so that its own loads find room among the outstanding ones.
    int prefetching = column + kTileColumns < block_.columns ? 4 : 0;
    if (packsB_ && p_.m <= kSgemmGroupRows && !p_.transposeB) prefetching = 0;
    if (prefetching == 0 && mode == kPrefetch) mode = kPlain;
    float* c = p_.c + block_.row * p_.ldc + block_.column + column;
    for (int64_t row = 0, height; row < block_.rows; row += height) {
      height = tileRows(block_.rows - row);
      tile_.a = a_ + (packedA_ ? row * block_.depth : row * tile_.aRow);
      if (packedA_) tile_.aRow = 1, tile_.aStep = height;
      tile_.c = c + row * p_.ldc;
      kKernels.of[height][vectors - 1][masked][mode](tile_);
      if (mode == kPack) tile_.b = panels_ + (reusesPanel_ ? 0 : column * block_.depth), tile_.bStep = kTileColumns;
      if (mode == kPrefetch) --prefetching;
      mode = prefetching > 0 ? kPrefetch : kPlain;
    }
  }

  const Sgemm& p_;
  const Block block_;
  const bool packsB_, reusesPanel_;
  float* const panels_;
  const float* a_;
  bool packedA_;
  Tile tile_ = {};
};

void clear(const Sgemm& p) {
  for (int64_t row = 0; row < p.m; ++row)
    for (int64_t column = 0; column < p.n; ++column) p.c[row * p.ldc + column] = 0;
}

}  // namespace

void sgemmV3(const Sgemm& p, float* room) {
  if (p.k == 0 && !p.accumulate) clear(p);
  // Panels come first: their loads do not cross cache lines.
  const bool reusesPanel = p.m <= kSgemmRows;
  const int64_t panelColumns = p.m <= kSgemmGroupRows ? kSgemmGroup
                               : reusesPanel
                                   ? kTileColumns
                                   : (min(p.n, kSgemmColumns) + kTileColumns - 1) / kTileColumns * kTileColumns;
  float* packedA = room + panelColumns * min(p.k, kSgemmDepth);
  Block block;
  for (block.column = 0; block.column < p.n; block.column += kSgemmColumns) {
    block.columns = min(p.n - block.column, kSgemmColumns);
    for (block.k = 0; block.k < p.k; block.k += kSgemmDepth) {
      block.depth = min(p.k - block.k, kSgemmDepth);
      for (block.row = 0; block.row < p.m; block.row += kSgemmRows) {
        block.rows = min(p.m - block.row, kSgemmRows);
        BlockProduct(p, block, block.row == 0, reusesPanel, packedA, room).run();
      }
    }
  }
}

}  // namespace sheaf::cpu::simd
