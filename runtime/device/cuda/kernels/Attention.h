// train.attention and its gradient by tiles of scores, which are never written to memory (Dao, "FlashAttention-2",
// 2023). The gradient is computed by two kernels, of which each owns what it sums: nothing is added atomically, so bits
// do not change from run to run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/device/cuda/kernels/Half.h"

namespace sheaf::cuda {

// The widest head that the kernels take.
constexpr int64_t kMostHeadWidth = 256;
// Queries and keys together: distances between them are numbers of 32 bits.
constexpr int64_t kMostTokens = INT32_MAX;

// Rows of an operand lie `row` elements apart, the heads of a token next to each other, batches one after the other.
struct HeadRows {
  void* data;
  int64_t row;
};

struct AttentionProblem {
  int64_t b, s, t, h, g, d, e;
  bool causal;
  FloatType type;  // of query, key, value, result and gradients
  int64_t window;  // of causal attention: the keys that a query sees at most; 0: all
  // A query sees keys up to its own number and `ahead`, and of those the last `span`; set by the calls.
  int64_t ahead;
  uint32_t span;
  float scale;
  const float* mask;            // [.., s, t], or null
  int64_t maskBatch, maskHead;  // its elements from one batch and from one head to the next; 0 if they share it
  HeadRows query, key, value, result;
  float* logSumExp;  // [b, h, s]
  // Of the gradient only.
  HeadRows gradient, queryGradient, keyGradient, valueGradient;
  float* delta;  // [b, h, s]: the dot product of result and gradient of each query
  float* base;   // [b, h, s], with a mask only: see maskBase; set by the calls
  bool vectors;  // every row and head that is read begins at a multiple of 16 bytes; set by the calls
};

cudaError_t attention(cudaStream_t stream, AttentionProblem problem);
cudaError_t attentionGrad(cudaStream_t stream, AttentionProblem problem);

}  // namespace sheaf::cuda
