// What sums in a fixed order: sum_partials, cumsum, square_sum, gradient_norm.
#include "runtime/device/cuda/kernels/Sums.h"

#include "runtime/device/cuda/functions/Functions.h"

namespace sheaf::cuda {
namespace {

template <typename T>
MadeFunction cumSumOf(const CumSumShape& shape) {
  using Call = plan::CumSumCall;
  return enqueues([shape](const Invocation& invocation) {
    return toStatus(cumSum<T>(invocation.stream, invocation.operand<T>(plan::kOperand<Call, "source">),
                              invocation.operand<T>(plan::kOperand<Call, "destination">), shape));
  });
}

}  // namespace

MadeFunction makeFunction(const plan::SumPartialsCall& call, const CallSite&) {
  using Call = plan::SumPartialsCall;
  return enqueues([call](const Invocation& invocation) {
    return toStatus(sumPartials(invocation.stream, invocation.operand<float>(plan::kOperand<Call, "source">),
                                invocation.operand<void>(plan::kOperand<Call, "destination">), floatType(call.type),
                                call.p, call.c));
  });
}

MadeFunction makeFunction(const plan::CumSumCall& call, const CallSite&) {
  const CumSumShape shape{call.outer, call.n, call.inner, call.exclusive, call.reverse};
  return plan::visitElement<&plan::ElementFacts::arithmetic>(
      call.type, [&](auto element) { return cumSumOf<typename decltype(element)::Sum>(shape); });
}

MadeFunction makeFunction(const plan::SquareSumCall& call, const CallSite&) {
  using Call = plan::SquareSumCall;
  return enqueues([call](const Invocation& invocation) {
    return toStatus(squareSum(invocation.stream, invocation.operand<void>(plan::kOperand<Call, "source">),
                              floatType(call.type), call.n, reinterpret_cast<double*>(invocation.scratch),
                              invocation.operand<double>(plan::kOperand<Call, "destination">)));
  });
}

MadeFunction makeFunction(const plan::GradientNormCall& call, const CallSite&) {
  using Call = plan::GradientNormCall;
  return enqueues([call](const Invocation& invocation) {
    return toStatus(gradientNorm(invocation.stream, invocation.operand<double>(plan::kOperand<Call, "partials">),
                                 call.ranks, call.buckets,
                                 invocation.operand<float>(plan::operandIndex<"max_norm">(call)),
                                 invocation.operand<float>(plan::operandIndex<"loss_scale">(call)),
                                 invocation.operand<float>(plan::operandIndex<"loss">(call)),
                                 invocation.operand<double>(plan::kOperand<Call, "norm">),
                                 invocation.operand<float>(plan::kOperand<Call, "scalars">)));
  });
}

}  // namespace sheaf::cuda
