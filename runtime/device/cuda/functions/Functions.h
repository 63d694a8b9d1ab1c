// How library calls are made: a maker reads a call's attributes once and returns what enqueues it.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/base/Status.h"
#include "runtime/base/Text.h"
#include "runtime/device/cuda/Blas.h"
#include "runtime/device/cuda/LibraryFunction.h"
#include "runtime/plan/Library.h"

namespace sheaf::cuda {

using MadeFunction = Expected<std::unique_ptr<const LibraryFunction>>;

inline Status toStatus(cudaError_t error) {
  return error == cudaSuccess ? Status() : Status::error(cat("CUDA: ", cudaGetErrorString(error)));
}

inline MadeFunction enqueues(std::function<Status(const Invocation&)> enqueue) {
  class Function : public LibraryFunction {
   public:
    explicit Function(std::function<Status(const Invocation&)> enqueue) : enqueue_(std::move(enqueue)) {}
    Status enqueue(const Invocation& invocation) const override { return enqueue_(invocation); }

   private:
    std::function<Status(const Invocation&)> enqueue_;
  };
  return std::unique_ptr<const LibraryFunction>(std::make_unique<Function>(std::move(enqueue)));
}

// Bytes whose multiple the operand begins at on every rank, as far as matrix products care.
int alignmentOf(const plan::LibraryCall& call, int operand);

// One maker for each function of runtime/plan/Library.h.
MadeFunction makeAttention(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeAttentionGrad(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeConv(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeConvGradFilter(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeConvGradInput(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeCopy(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeCumSum(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeDropout(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeGather(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeGemm(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeGradientNorm(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeMaxPool(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeMaxPoolGrad(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeScatterAdd(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeSquareSum(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeSumPartials(const plan::LibraryCall& call, int64_t seed, Blas& blas);
MadeFunction makeZero(const plan::LibraryCall& call, int64_t seed, Blas& blas);

}  // namespace sheaf::cuda
