// attention and attention_grad.
#include "runtime/device/cuda/kernels/Attention.h"

#include "runtime/device/cuda/functions/Functions.h"

namespace sheaf::cuda {
namespace {

Expected<AttentionProblem> problemOf(const plan::LibraryCall& call) {
  auto get = [&](const char* name) { return plan::integer(call, name); };
  AttentionProblem p = {};
  p.b = get("b"), p.s = get("s"), p.t = get("t"), p.h = get("h"), p.g = get("g"), p.d = get("d"), p.e = get("e");
  if (std::max(p.d, p.e) > kMostHeadWidth)
    return Status::error(cat(call.function(), ": heads of ", std::max(p.d, p.e),
                             " elements; on a GPU they have at most ", kMostHeadWidth));
  if (p.s > kMostTokens - p.t)
    return Status::error(cat(call.function(), ": ", p.s, " queries and ", p.t, " keys; on a GPU they are at most ",
                             kMostTokens, " together"));
  p.causal = get("causal") != 0;
  p.window = p.causal ? get("window") : 0;
  p.half = plan::elementType(call) == plan::BF16;
  p.scale = static_cast<float>(plan::real(call, "scale"));
  if (get("mask")) {
    const int64_t matrix = p.s * p.t;
    p.maskBatch = get("mask_b") == 1 ? 0 : get("mask_h") * matrix;
    p.maskHead = get("mask_h") == 1 ? 0 : matrix;
  }
  p.query.row = get("query_row"), p.key.row = get("key_row"), p.value.row = get("value_row");
  p.result.row = get("result_row"), p.gradient.row = get("gradient_row");
  p.queryGradient.row = get("query_gradient_row"), p.keyGradient.row = get("key_gradient_row");
  p.valueGradient.row = get("value_gradient_row");
  return p;
}

}  // namespace

MadeFunction makeAttention(const plan::LibraryCall& call, int64_t, Blas&) {
  auto problem = problemOf(call);
  if (!problem.ok()) return problem.status();
  const bool mask = plan::integer(call, "mask") != 0;
  return enqueues([problem = *problem, mask](const Invocation& invocation) {
    AttentionProblem p = problem;
    int next = 0;
    p.query.data = invocation.operand<void>(next++);
    p.key.data = invocation.operand<void>(next++);
    p.value.data = invocation.operand<void>(next++);
    if (mask) p.mask = invocation.operand<float>(next++);
    p.result.data = invocation.operand<void>(next++);
    p.logSumExp = invocation.operand<float>(next);
    return toStatus(attention(invocation.stream, p));
  });
}

MadeFunction makeAttentionGrad(const plan::LibraryCall& call, int64_t, Blas&) {
  auto problem = problemOf(call);
  if (!problem.ok()) return problem.status();
  const bool mask = plan::integer(call, "mask") != 0;
  return enqueues([problem = *problem, mask](const Invocation& invocation) {
    AttentionProblem p = problem;
    int next = 0;
    p.query.data = invocation.operand<void>(next++);
    p.key.data = invocation.operand<void>(next++);
    p.value.data = invocation.operand<void>(next++);
    p.result.data = invocation.operand<void>(next++);
    p.logSumExp = invocation.operand<float>(next++);
    p.gradient.data = invocation.operand<void>(next++);
    if (mask) p.mask = invocation.operand<float>(next++);
    p.queryGradient.data = invocation.operand<void>(next++);
    p.keyGradient.data = invocation.operand<void>(next++);
    p.valueGradient.data = invocation.operand<void>(next);
    p.delta = reinterpret_cast<float*>(invocation.scratch);
    return toStatus(attentionGrad(invocation.stream, p));
  });
}

}  // namespace sheaf::cuda
