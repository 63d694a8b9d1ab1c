// The library calls that are measured, in groups of an InstructionTimer.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "runtime/measure/InstructionTimer.h"

namespace sheaf::measure {

// Of one rank's arena on the CPU: more than caches hold.
inline constexpr uint64_t kArenaBytes = uint64_t{160} << 20;
// Operands have been touched a few instructions ago: a group cycles through so many times what an instruction moves.
inline constexpr int kFootprints = 4;

// Sizes at which a device is measured.
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
  std::vector<int64_t> movedRows;  // of 32 elements
};
const MeasuredShapes& measuredShapes(bool gpu);

// Bytes of a tensor.
uint64_t bytesOf(plan::ElementType type, std::initializer_list<int64_t> sizes);

// A call and the bytes of its operands, scratch left out.
struct MeasuredCall {
  plan::LibraryCall call;
  std::vector<std::pair<uint64_t, plan::Access>> operands;

  uint64_t bytes() const;
  // What it needs beside them on a GPU.
  uint64_t gpuScratch() const;
  // Whether the library has the call for its type.
  bool supported() const;
};
MeasuredCall gemmCall(plan::ElementType type, int64_t m, int64_t n, int64_t k, bool transposeA, bool transposeB,
                      bool tf32 = false);
// A bf16 product that adds a bias, keeps the sum and applies GELU.
MeasuredCall geluCall(int64_t m, int64_t n, int64_t k);
// Self-attention of `heads` heads of width `width`, or its gradient.
MeasuredCall attentionCall(plan::ElementType type, int64_t batch, int64_t sequence, int64_t heads, int64_t width,
                           bool causal, bool gradient);

// Adds the call `copies` times, on operands of its own each time.
void addCalls(InstructionTimer& timer, const MeasuredCall& call, int copies);

}  // namespace sheaf::measure
