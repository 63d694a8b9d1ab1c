// Cuts library calls into pieces of work. The pieces depend on shapes, never on the number of threads, and the bits of
// results depend on them; the exception is threadTile(). Scratch and the bounds on what libraries allocate follow from
// the pieces.
#pragma once

#include <cstdint>

namespace sheaf::plan {

// A matrix product is computed in tiles of the result. oneDNN's bits depend on the tiles. half: of operands of 16 bits.
struct GemmTile {
  int64_t rows;
  int64_t columns;
};
GemmTile gemmTile(int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB, bool half);

// Bytes that one single-threaded dnnl_sgemm of this shape may allocate for its packed operands, at most. This is also
// the bound of Sheaf's own products, which need less.
uint64_t sgemmPackingBytes(int64_t m, int64_t n, int64_t k);

// Sheaf's own f32 products (runtime/device/cpu/simd/Sgemm.h) work on blocks of at most this size. kSgemmDepth decides
// bits.
constexpr int64_t kSgemmRows = 96, kSgemmColumns = 1024, kSgemmDepth = 256;
// A product of at most kSgemmGroupRows rows packs kSgemmGroup columns of b at a time.
constexpr int64_t kSgemmGroup = 64, kSgemmGroupRows = 24;

// Bytes that such a product needs for its packed operands.
uint64_t sgemmRoom(int64_t m, int64_t n, int64_t k);

// The tile of such a product for so many threads: bits do not depend on it. sgemmRoom() of the tile is at most
// sgemmPackingBytes() of gemmTile().
GemmTile threadTile(int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB, int threads);

// Scratch of a product of 16-bit floats, in floats. oneDNN sums a tile of bf16 in f32 there before it rounds it, so
// that a tile has at most as many elements. Of f16, and where the processor has no bf16 products, a tile is computed in
// f32 by blocks of this size, converted into scratch: the blocks of a, b and c.
constexpr int64_t kHalfGemmRows = 128, kHalfGemmColumns = 256, kHalfGemmDepth = 512;
constexpr int64_t kHalfGemmScratch =
    (kHalfGemmRows + kHalfGemmColumns) * kHalfGemmDepth + kHalfGemmRows * kHalfGemmColumns;

// Queries and keys of a tile of attention scores.
constexpr int64_t kAttentionQueries = 64;
constexpr int64_t kAttentionKeys = 256;

// Columns (output pixels) of the unrolled input of a convolution that are multiplied at a time.
int64_t convPixels(int64_t patch, int64_t pixels);

// square_sum adds up blocks of so many elements.
constexpr int64_t kSquareSumBlock = 4096;

// --- on a GPU: what calls keep in their device scratch, which starts at a multiple of kDeviceAlignment bytes, as each
// of its parts does. cuBLASLt refuses workspaces that start elsewhere (CUDA's manual of cuBLAS, cublasLtMatmul()). ---

constexpr int64_t kDeviceAlignment = 256;

// Workspace of one matrix product: what cuBLASLt recommends on Hopper and later, less where the result is small.
int64_t gemmWorkspace(int64_t m, int64_t n, int64_t batch);

// scatter_add sorts positions by row, in tiles of so many: offsets in bytes of arrays of 32-bit words.
constexpr int64_t kScatterTile = 2048;
struct ScatterScratch {
  int64_t rows[2], positions[2];  // [count] each
  int64_t counts;                 // [256, tiles]
  int64_t starts;                 // [rows + 1]
  int64_t bytes;                  // of all
};
ScatterScratch scatterScratch(int64_t rows, int64_t count);

// top_k scans a line once for each of so few elements; for more it sorts lines, so many at a time.
constexpr int64_t kTopKScans = 8;
int64_t topKLines(int64_t lines, int64_t n);

// Convolutions unroll so many images at a time; a row of the columns is a filter element of a channel.
struct ConvScratch {
  int64_t images;
  int64_t columnBytes;     // of the columns, with which the scratch begins
  int64_t workspaceBytes;  // of their products
};
ConvScratch convScratch(int64_t images, int64_t columnRows, int64_t pixels);

}  // namespace sheaf::plan
