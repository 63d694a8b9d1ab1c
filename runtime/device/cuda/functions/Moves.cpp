// What moves elements: gather, scatter_add, copy, zero; and random numbers: dropout, random_uniform.
#include <cmath>

#include "runtime/device/cuda/functions/Functions.h"
#include "runtime/device/cuda/functions/IndicesOf.h"
#include "runtime/device/cuda/kernels/Copy.h"
#include "runtime/device/cuda/kernels/Dropout.h"

namespace sheaf::cuda {

MadeFunction makeFunction(const plan::GatherCall& call, const CallSite&) {
  return enqueues([call](const Invocation& invocation) {
    using Call = plan::GatherCall;
    GatherProblem p = {};
    p.outer = call.indexOuter ? 1 : call.outer;
    p.slice = (call.indexInner ? 1 : call.inner) * call.elementBytes;
    p.data = invocation.operand<std::byte>(plan::kOperand<Call, "data">);
    p.result = invocation.operand<std::byte>(plan::kOperand<Call, "result">);
    return toStatus(gather(invocation.stream, indicesOf(call, invocation), p));
  });
}

MadeFunction makeFunction(const plan::ScatterAddCall& call, const CallSite&) {
  return enqueues([call](const Invocation& invocation) {
    using Call = plan::ScatterAddCall;
    ScatterAddProblem p = {};
    p.outer = call.outer;
    p.inner = call.inner;
    p.type = floatType(call.type);
    p.update = invocation.operand<void>(plan::kOperand<Call, "update">);
    p.result = invocation.operand<void>(plan::kOperand<Call, "result">);
    p.scratch = invocation.scratch;
    return toStatus(scatterAdd(invocation.stream, indicesOf(call, invocation), p));
  });
}

MadeFunction makeFunction(const plan::CopyCall& call, const CallSite& site) {
  using Call = plan::CopyCall;
  const int64_t width = call.elementBytes, offset = call.sourceOffset * width;
  const size_t zeroed = call.zero ? site.operandBytes(plan::kOperand<Call, "destination">) : 0;
  return enqueues([=, dimensions = plan::simplified(call.dimensions)](const Invocation& invocation) {
    const std::byte* source = invocation.operand<std::byte>(plan::kOperand<Call, "source">);
    std::byte* destination = invocation.operand<std::byte>(plan::kOperand<Call, "destination">);
    if (zeroed > 0) SHEAF_RETURN_IF_ERROR(toStatus(cudaMemsetAsync(destination, 0, zeroed, invocation.stream)));
    return toStatus(copyStrided(invocation.stream, source + offset, destination, width, dimensions));
  });
}

MadeFunction makeFunction(const plan::ZeroCall&, const CallSite& site) {
  constexpr int kDestination = plan::kOperand<plan::ZeroCall, "destination">;
  return enqueues([bytes = site.operandBytes(kDestination)](const Invocation& invocation) {
    return toStatus(cudaMemsetAsync(invocation.operand<void>(kDestination), 0, bytes, invocation.stream));
  });
}

static RandomWords wordsOf(const plan::RandomShape& shape, uint64_t seed, const Invocation& invocation) {
  const uint64_t first = shape.firstIndex(0, invocation.piece);
  const uint64_t stride = shape.firstIndex(1, invocation.piece) - first;
  return {seed, static_cast<uint32_t>(shape.node), invocation.step, first, stride, shape.run(), shape.blocks};
}

MadeFunction makeFunction(const plan::DropoutCall& call, const CallSite& site) {
  DropoutProblem problem = {};
  // Kept iff word * 2^-32 >= ratio, which is word >= ceil(ratio * 2^32): the product is exact.
  problem.threshold = static_cast<uint64_t>(std::ceil(call.ratio * 4294967296.0));
  problem.scale = call.ratio < 1 ? static_cast<float>(1 / (1 - call.ratio)) : 0.0f;
  return enqueues([problem, shape = plan::RandomShape(call), seed = uint64_t(site.seed)](const Invocation& invocation) {
    using Call = plan::DropoutCall;
    DropoutProblem p = problem;
    p.source = invocation.operand<float>(plan::kOperand<Call, "source">);
    p.destination = invocation.operand<float>(plan::kOperand<Call, "destination">);
    p.words = wordsOf(shape, seed, invocation);
    return toStatus(dropout(invocation.stream, p));
  });
}

MadeFunction makeFunction(const plan::RandomUniformCall& call, const CallSite& site) {
  return enqueues([shape = plan::RandomShape(call), seed = uint64_t(site.seed)](const Invocation& invocation) {
    UniformProblem p = {};
    p.destination = invocation.operand<float>(plan::kOperand<plan::RandomUniformCall, "destination">);
    p.words = wordsOf(shape, seed, invocation);
    return toStatus(randomUniform(invocation.stream, p));
  });
}

}  // namespace sheaf::cuda
