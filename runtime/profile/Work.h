// Work: what an instruction computes and moves, independent of the machine. The compiler builds it from `train` ops
// too.
#pragma once

#include <cstdint>

#include "runtime/plan/Library.h"

namespace sheaf::profile {

struct Work {
  enum class Kind {
    kNone,         // takes no time: records and waits
    kKernel,       // a compiled fusion
    kGemm,         // a matrix product: m, n, k, batch, transposes
    kAttention,    // `batch` heads of m queries and n keys (at most the window's) of width k
    kConvolution,  // m, n, k of the matrix product that it unrolls to
    kOther,        // library calls that move data
  };
  Kind kind = Kind::kNone;
  plan::ElementType type = plan::F32;  // of the operands
  double flops = 0;                    // a multiply-add counts as two; of a kernel: Kernel.operations
  double bytes = 0;                    // read and written; an operand that is both counts twice
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transposeA = false, transposeB = false;
  bool tf32 = false;         // the f32 operands of a product may be rounded to TF32
  double epilogueBytes = 0;  // of `bytes`: the second [m, n] matrix that a plan::GemmEpilogue reads or writes
  bool gradient = false;     // of attention
  bool causal = false;       // of attention: `flops` counts only the scores that the mask leaves
};

// `batch` products [m, k] x [k, n]. `bytes` counts operands and result.
Work gemmWork(plan::ElementType type, int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB);
Work gemmWork(const plan::GemmCall& call);

// Attention over `batch` sequences and `heads` heads: `queries` queries and `keys` keys of width `width`, values of
// width `valueWidth`. Forward it takes two matrix products; the gradient takes five (the scores again, the gradient of
// the scores, and those of query, key and value). `bytes` is not set.
Work attentionWork(plan::ElementType type, int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t width,
                   int64_t valueWidth, bool causal, bool gradient, int64_t window = 0);

// A kernel (`flops` is train::fusionOperations) or a call that moves data.
Work movingWork(Work::Kind kind, plan::ElementType type, double bytes, double flops = 0);

// The work of a library call. Its bytes are those of a product's operands and result without padding; 0 for other
// calls.
Work workOf(const plan::AnyCall& call);

// The work of an instruction of `plan`. Collectives (see Transfer in Profile.h), records and waits have none; reading
// inputs and writing outputs moves their bytes, and so do calls that plan::parseCall refuses.
Work workOf(const plan::Instruction& instruction, const plan::Plan& plan);

}  // namespace sheaf::profile
