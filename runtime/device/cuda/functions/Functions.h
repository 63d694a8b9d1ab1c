// How library calls are made: a maker takes a call's attributes once and returns what enqueues it.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/base/Status.h"
#include "runtime/base/Text.h"
#include "runtime/device/cuda/Blas.h"
#include "runtime/device/cuda/LibraryFunction.h"

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

// What is known of a call besides its attributes.
struct CallSite {
  const plan::Instruction& instruction;  // for its operands' places and its scratch
  int64_t seed;                          // the seed of the plan
  Blas& blas;

  size_t operandBytes(int index) const { return instruction.operands(index).bytes(); }
  // Bytes whose multiple the operand begins at on every rank, as far as matrix products care.
  int alignment(int index) const;
};

inline FloatType floatType(plan::Element<plan::F32>) {
  return FloatType::kF32;
}
inline FloatType floatType(plan::Element<plan::BF16>) {
  return FloatType::kBf16;
}
inline FloatType floatType(plan::Element<plan::F16>) {
  return FloatType::kF16;
}
// Of operands that are floats of the call's type.
inline FloatType floatType(plan::ElementType type) {
  return plan::visitElement<&plan::ElementFacts::products>(type, [](auto element) { return floatType(element); });
}

// The maker of each call.
MadeFunction makeFunction(const plan::AdvanceLossScaleCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::AttentionCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::AttentionGradCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::ConvCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::ConvGradFilterCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::ConvGradInputCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::CopyCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::CumSumCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::DropoutCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::GatherCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::GemmCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::GradientNormCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::MaxPoolCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::MaxPoolGradCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::MaxPoolIndicesCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::RandomUniformCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::ScatterAddCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::ScatterCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::SquareSumCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::SumPartialsCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::TopKCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::UpdateScalarCall& call, const CallSite& site);
MadeFunction makeFunction(const plan::ZeroCall& call, const CallSite& site);

}  // namespace sheaf::cuda
