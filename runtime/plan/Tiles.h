// Cuts library calls into pieces of work. The pieces depend on shapes and, in f32 products of a CPU, on its instruction
// set, never on the number of threads; so do the bits of the results. Scratch and the bounds on what libraries allocate
// follow from the pieces.
#pragma once

#include <cstdint>

namespace sheaf::plan {

// The instruction set of oneDNN's products on a CPU: each has kernels of its own, which other tiles suit. kAvx2 stands
// for all that are narrower than AVX-512. A plan does not hold it; the processor and ONEDNN_MAX_CPU_ISA decide it when
// a run starts, the same in all its processes (Device::gemmIsa).
enum class CpuIsa { kAvx2, kAvx512 };

// A matrix product is computed in tiles of the result. half: of operands of 16 bits, whose tiles do not depend on isa.
struct GemmTile {
  int64_t rows;
  int64_t columns;
};
GemmTile gemmTile(CpuIsa isa, int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB,
                  bool half);

// True if oneDNN computes an f32 product of this size without packing its operands (by its no-copy kernel). That of
// AVX2 is slow where an operand is transposed.
bool usesNoCopyKernel(CpuIsa isa, int64_t rows, int64_t columns);

// Bytes that one single-threaded dnnl_sgemm of this shape may allocate for its packed operands, at most. The tiles of
// AVX2 need no more than those of AVX-512, so that the bound in a plan holds for both.
uint64_t sgemmPackingBytes(int64_t m, int64_t n, int64_t k, CpuIsa isa = CpuIsa::kAvx512);

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
