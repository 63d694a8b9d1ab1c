// What sums in a fixed order: sum_partials, cumsum, square_sum, gradient_norm.
#include "runtime/device/cuda/kernels/Sums.h"

#include "runtime/device/cuda/functions/Functions.h"

namespace sheaf::cuda {
namespace {

template <typename T>
MadeFunction cumSumOf(const CumSumShape& shape) {
  return enqueues([shape](const Invocation& invocation) {
    return toStatus(cumSum<T>(invocation.stream, invocation.operand<T>(0), invocation.operand<T>(1), shape));
  });
}

}  // namespace

MadeFunction makeSumPartials(const plan::LibraryCall& call, int64_t, Blas&) {
  const int64_t partials = plan::integer(call, "p"), columns = plan::integer(call, "c");
  const bool half = plan::elementType(call) == plan::BF16;
  return enqueues([=](const Invocation& invocation) {
    return toStatus(sumPartials(invocation.stream, invocation.operand<float>(0), invocation.operand<void>(1), half,
                                partials, columns));
  });
}

MadeFunction makeCumSum(const plan::LibraryCall& call, int64_t, Blas&) {
  const CumSumShape shape{plan::integer(call, "outer"), plan::integer(call, "n"), plan::integer(call, "inner"),
                          plan::integer(call, "exclusive") != 0, plan::integer(call, "reverse") != 0};
  switch (plan::integer(call, "type")) {
    case plan::F64:
      return cumSumOf<double>(shape);
    case plan::I64:  // unsigned: sums of integers wrap
      return cumSumOf<uint64_t>(shape);
    case plan::I32:
      return cumSumOf<uint32_t>(shape);
    default:
      return cumSumOf<float>(shape);
  }
}

MadeFunction makeSquareSum(const plan::LibraryCall& call, int64_t, Blas&) {
  const int64_t count = plan::integer(call, "n");
  const bool half = plan::elementType(call) == plan::BF16;
  return enqueues([=](const Invocation& invocation) {
    return toStatus(squareSum(invocation.stream, invocation.operands[0], half, count,
                              reinterpret_cast<double*>(invocation.scratch), invocation.operand<double>(1)));
  });
}

MadeFunction makeGradientNorm(const plan::LibraryCall& call, int64_t, Blas&) {
  const int64_t ranks = plan::integer(call, "ranks"), buckets = plan::integer(call, "buckets");
  const bool clip = plan::integer(call, "clip") != 0;
  return enqueues([=](const Invocation& invocation) {
    return toStatus(gradientNorm(invocation.stream, invocation.operand<double>(0), ranks, buckets,
                                 clip ? invocation.operand<float>(3) : nullptr, invocation.operand<double>(1),
                                 invocation.operand<float>(2)));
  });
}

}  // namespace sheaf::cuda
