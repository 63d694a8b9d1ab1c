// attention and attention_grad.
#include "runtime/device/cuda/kernels/Attention.h"

#include "runtime/device/cuda/functions/Functions.h"

namespace sheaf::cuda {
namespace {

Expected<AttentionProblem> problemOf(const plan::AttentionShape& call, std::string_view name) {
  AttentionProblem p = {};
  p.b = call.b, p.s = call.s, p.t = call.t, p.h = call.h, p.g = call.g, p.d = call.d, p.e = call.e;
  if (std::max(p.d, p.e) > kMostHeadWidth)
    return Status::error(
        cat(name, ": heads of ", std::max(p.d, p.e), " elements; on a GPU they have at most ", kMostHeadWidth));
  if (p.s > kMostTokens - p.t)
    return Status::error(
        cat(name, ": ", p.s, " queries and ", p.t, " keys; on a GPU they are at most ", kMostTokens, " together"));
  p.causal = call.causal;
  p.window = call.window;
  p.type = floatType(call.type);
  p.scale = static_cast<float>(call.scale);
  if (call.mask) {
    const int64_t matrix = p.s * p.t;
    p.maskBatch = call.maskB == 1 ? 0 : call.maskH * matrix;
    p.maskHead = call.maskH == 1 ? 0 : matrix;
  }
  p.query.row = call.queryRow, p.key.row = call.keyRow, p.value.row = call.valueRow;
  p.result.row = call.resultRow;
  return p;
}

// The operands that both have.
template <typename Call>
AttentionProblem placed(AttentionProblem p, const Call& call, const Invocation& invocation) {
  p.query.data = invocation.operand<void>(plan::operandIndex<"query">(call));
  p.key.data = invocation.operand<void>(plan::operandIndex<"key">(call));
  p.value.data = invocation.operand<void>(plan::operandIndex<"value">(call));
  p.mask = invocation.operand<float>(plan::operandIndex<"mask">(call));
  p.result.data = invocation.operand<void>(plan::operandIndex<"result">(call));
  p.logSumExp = invocation.operand<float>(plan::operandIndex<"log_sum_exp">(call));
  return p;
}

}  // namespace

MadeFunction makeFunction(const plan::AttentionCall& call, const CallSite&) {
  auto problem = problemOf(call, "attention");
  if (!problem.ok()) return problem.status();
  return enqueues([problem = *problem, call](const Invocation& invocation) {
    return toStatus(attention(invocation.stream, placed(problem, call, invocation)));
  });
}

MadeFunction makeFunction(const plan::AttentionGradCall& call, const CallSite&) {
  auto problem = problemOf(call, "attention_grad");
  if (!problem.ok()) return problem.status();
  problem->gradient.row = call.gradientRow, problem->queryGradient.row = call.queryGradientRow;
  problem->keyGradient.row = call.keyGradientRow, problem->valueGradient.row = call.valueGradientRow;
  return enqueues([problem = *problem, call](const Invocation& invocation) {
    AttentionProblem p = placed(problem, call, invocation);
    p.gradient.data = invocation.operand<void>(plan::operandIndex<"gradient">(call));
    p.queryGradient.data = invocation.operand<void>(plan::operandIndex<"query_gradient">(call));
    p.keyGradient.data = invocation.operand<void>(plan::operandIndex<"key_gradient">(call));
    p.valueGradient.data = invocation.operand<void>(plan::operandIndex<"value_gradient">(call));
    p.delta = reinterpret_cast<float*>(invocation.scratch);
    return toStatus(attentionGrad(invocation.stream, p));
  });
}

}  // namespace sheaf::cuda
