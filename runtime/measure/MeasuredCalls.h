// The library calls that are measured, and their sizes.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/measure/InstructionTimer.h"

namespace sheaf::measure {

// Arena of one rank on the CPU: larger than the caches.
inline constexpr uint64_t kArenaBytes = uint64_t{160} << 20;
// A group cycles through this many times the bytes of one instruction, as if operands had been used a few instructions
// ago.
inline constexpr int kFootprints = 4;

// Shapes at which a device is measured.
struct GemmShape {
  int64_t m, n, k;
};
struct AttentionShape {
  int64_t b, h, s, d;
  bool causal;
};
struct MeasuredShapes {
  std::vector<GemmShape> gemm;
  std::vector<AttentionShape> attention;
  std::vector<int64_t> movedRows;  // rows of 32 elements
};
const MeasuredShapes& measuredShapes(bool gpu);

// Bytes of a call's operands without scratch, and of its scratch on a GPU with what aligning it takes at most.
uint64_t operandBytes(const plan::AnyCall& call);
uint64_t gpuScratch(const plan::AnyCall& call);

plan::GemmCall gemmCall(plan::ElementType type, int64_t m, int64_t n, int64_t k, bool transposeA, bool transposeB,
                        bool tf32 = false);
// A bf16 matrix product with the epilogue bias + GELU, which also stores the sum before GELU.
plan::GemmCall geluCall(int64_t m, int64_t n, int64_t k);
// Self-attention of `heads` heads of width `width`, or its gradient.
plan::AnyCall attentionCall(plan::ElementType type, int64_t batch, int64_t sequence, int64_t heads, int64_t width,
                            bool causal, bool gradient);
// A copy of f32 elements: `rows` rows of `columns`, `row` elements apart in the source, dense in the destination.
plan::CopyCall copyCall(int64_t rows, int64_t columns, int64_t row);

}  // namespace sheaf::measure
