// scatter and top_k.
#include "runtime/device/cuda/functions/IndicesOf.h"
#include "runtime/device/cuda/kernels/TopK.h"

namespace sheaf::cuda {
namespace {

ScatterType scatterType(plan::Element<plan::F32>) {
  return ScatterType::kF32;
}
ScatterType scatterType(plan::Element<plan::F64>) {
  return ScatterType::kF64;
}
ScatterType scatterType(plan::Element<plan::I32>) {
  return ScatterType::kI32;
}
ScatterType scatterType(plan::Element<plan::I64>) {
  return ScatterType::kI64;
}

// Scatters that compute read the type; those that replace do not.
ScatterType scatterType(plan::ElementType type) {
  return plan::visitElement<&plan::ElementFacts::arithmetic>(type, [](auto element) { return scatterType(element); });
}

template <typename T>
MadeFunction topKOf(const TopKShape& shape) {
  using Call = plan::TopKCall;
  return enqueues([shape](const Invocation& invocation) {
    return toStatus(topK<T>(invocation.stream, shape, invocation.operand<T>(plan::kOperand<Call, "source">),
                            invocation.operand<int64_t>(plan::kOperand<Call, "result">), invocation.scratch));
  });
}

}  // namespace

MadeFunction makeFunction(const plan::ScatterCall& call, const CallSite&) {
  ScatterProblem problem = {};
  problem.outer = call.indexOuter ? 1 : call.outer;
  problem.inner = call.indexInner ? 1 : call.inner;
  problem.kind = static_cast<ScatterKind>(call.kind);
  problem.type = scatterType(call.type);
  problem.elementBytes = static_cast<int64_t>(plan::elementBytes(call.type));
  return enqueues([call, problem](const Invocation& invocation) {
    ScatterProblem p = problem;
    p.update = invocation.operand<void>(plan::kOperand<plan::ScatterCall, "update">);
    p.data = invocation.operand<void>(plan::operandIndex<"data">(call));
    p.result = invocation.operand<void>(plan::operandIndex<"result">(call));
    p.scratch = invocation.scratch;
    return toStatus(scatter(invocation.stream, indicesOf(call, invocation), p));
  });
}

MadeFunction makeFunction(const plan::TopKCall& call, const CallSite&) {
  const TopKShape shape{call.outer, call.n, call.inner, call.k, call.largest};
  return plan::visitElement<&plan::ElementFacts::arithmetic>(
      call.type, [&](auto element) { return topKOf<typename decltype(element)::Stored>(shape); });
}

}  // namespace sheaf::cuda
