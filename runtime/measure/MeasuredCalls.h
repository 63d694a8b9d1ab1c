// The library calls that are measured, and their sizes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
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

// Bytes of a tensor of these sizes.
uint64_t bytesOf(plan::ElementType type, std::initializer_list<int64_t> sizes);

// A call and the bytes of its operands without scratch.
struct MeasuredCall {
  plan::LibraryCall call;
  std::vector<std::pair<uint64_t, plan::Access>> operands;

  uint64_t bytes() const;
  // Scratch bytes on a GPU.
  uint64_t gpuScratch() const;
  // Whether the library implements the call for its element type.
  bool supported() const;
};
MeasuredCall gemmCall(plan::ElementType type, int64_t m, int64_t n, int64_t k, bool transposeA, bool transposeB,
                      bool tf32 = false);
// A bf16 matrix product with the epilogue bias + GELU, which also stores the sum before GELU.
MeasuredCall geluCall(int64_t m, int64_t n, int64_t k);
// Self-attention of `heads` heads of width `width`, or its gradient.
MeasuredCall attentionCall(plan::ElementType type, int64_t batch, int64_t sequence, int64_t heads, int64_t width,
                           bool causal, bool gradient);

// Adds the call `copies` times, on operands of its own each time.
void addCalls(InstructionTimer& timer, const MeasuredCall& call, int copies);

}  // namespace sheaf::measure
