// What an instruction asks of a machine, independent of the machine. The compiler builds the same from `train` ops.
#pragma once

#include <cstdint>

#include "runtime/plan/plan.pb.h"

namespace sheaf::profile {

struct Work {
  enum class Kind {
    kNone,         // nothing that takes time: records and waits
    kKernel,       // a compiled fusion
    kGemm,         // m, n, k, batch and the transposes
    kAttention,    // batch heads of m queries and n keys (or a window's) of width k
    kConvolution,  // as the matrix product it unrolls to
    kOther,        // library calls that move bytes
  };
  Kind kind = Kind::kNone;
  plan::ElementType type = plan::F32;  // of the operands
  double flops = 0;                    // a multiplication and an addition count as two; a kernel's are its operations
  double bytes = 0;                    // moved: each operand once, one that is read and written twice
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transposeA = false, transposeB = false;
  bool tf32 = false;  // a product whose f32 operands may be rounded to TF32
  double epilogueBytes =
      0;                  // of the product's bytes those of another matrix as large as the result: see plan::Epilogue
  bool gradient = false;  // of attention
  bool causal = false;    // attention: flops are those of the scores that are needed, half of them or a window's
};

// A product of [m, k] and [k, n], `batch` times. Bytes are those of operands and result.
Work gemmWork(plan::ElementType type, int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB);

// Attention of `batch` sequences and `heads` heads with `queries` and `keys` of width `width`, values of width
// `valueWidth`, or its gradient: two products of scores forward; the scores again, three gradients of inputs and one of
// scores backward. Bytes are not set.
Work attentionWork(plan::ElementType type, int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t width,
                   int64_t valueWidth, bool causal, bool gradient, int64_t window = 0);

// A kernel (flops: train::fusionOperations) or another call that moves bytes.
Work movingWork(Work::Kind kind, plan::ElementType type, double bytes, double flops = 0);

// Of an instruction that computes. The work of collectives (see Transfer in Profile.h), records and waits is none; that
// of reading inputs and writing outputs is the bytes they move. Attributes that checkLibraryCall would refuse give some
// finite work. The plan is that of the instruction: it has the kernels.
Work workOf(const plan::Instruction& instruction, const plan::Plan& plan);

}  // namespace sheaf::profile
