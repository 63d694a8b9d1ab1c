// The library calls of runtime/plan/Library.h on the CPU: made once per call, run every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/Status.h"
#include "runtime/device/cpu/ComputePool.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cpu {

// What a run of a call works on.
struct Invocation {
  ComputePool& pool;
  std::byte* const* operands;  // addresses, in the order of the call
  std::byte* scratch;          // scratchPerThread bytes for each thread of the pool, or null
  int64_t rank;                // data index
  int64_t step;

  template <typename T>
  T* operand(int index) const {
    return reinterpret_cast<T*>(operands[index]);
  }
};

class LibraryFunction {
 public:
  virtual ~LibraryFunction() = default;
  virtual Status run(const Invocation& invocation) const = 0;
};

// The function of a call that checkLibraryCall accepts; null if there is none of that name.
std::unique_ptr<const LibraryFunction> makeLibraryFunction(const plan::LibraryCall& call, int64_t seed);

// One maker per file of functions/; see runtime/plan/Library.h for what each computes.
std::unique_ptr<const LibraryFunction> makeGemm(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeHalfGemm(const plan::LibraryCall& call);  // bf16
std::unique_ptr<const LibraryFunction> makeAttention(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeAttentionGrad(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeGather(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeScatterAdd(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeCopy(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeZero(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeSumPartials(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeCumSum(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeSquareSum(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeGradientNorm(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeDropout(const plan::LibraryCall& call, int64_t seed);
std::unique_ptr<const LibraryFunction> makeConv(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeConvGradInput(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeConvGradFilter(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeMaxPool(const plan::LibraryCall& call);
std::unique_ptr<const LibraryFunction> makeMaxPoolGrad(const plan::LibraryCall& call);

}  // namespace sheaf::cpu
