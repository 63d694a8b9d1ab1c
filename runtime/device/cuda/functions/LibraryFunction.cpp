#include "runtime/device/cuda/LibraryFunction.h"

#include <string_view>

#include "runtime/device/cuda/functions/Functions.h"

namespace sheaf::cuda {

int alignmentOf(const plan::LibraryCall& call, int operand) {
  // Buffers start at multiples of 128 bytes (runtime/plan/Verify.h).
  constexpr uint64_t kBuffers = 128;
  const uint64_t all = kBuffers | call.operands(operand).offset() | call.operands(operand).shard_stride();
  return static_cast<int>(all & (~all + 1));
}

Expected<std::unique_ptr<const LibraryFunction>> makeLibraryFunction(const plan::LibraryCall& call, int64_t seed,
                                                                     Blas& blas) {
  struct Entry {
    std::string_view name;
    MadeFunction (*make)(const plan::LibraryCall&, int64_t, Blas&);
  };
  static constexpr Entry kFunctions[] = {
      {"attention", makeAttention},
      {"attention_grad", makeAttentionGrad},
      {"conv", makeConv},
      {"conv_grad_filter", makeConvGradFilter},
      {"conv_grad_input", makeConvGradInput},
      {"copy", makeCopy},
      {"cumsum", makeCumSum},
      {"dropout", makeDropout},
      {"gather", makeGather},
      {"gemm", makeGemm},
      {"gradient_norm", makeGradientNorm},
      {"max_pool", makeMaxPool},
      {"max_pool_grad", makeMaxPoolGrad},
      {"scatter_add", makeScatterAdd},
      {"square_sum", makeSquareSum},
      {"sum_partials", makeSumPartials},
      {"zero", makeZero},
  };
  const uint64_t scratch = plan::deviceScratch(call);
  if (call.device_scratch() < scratch)
    return Status::error(cat(call.function(), " needs ", bytesText(scratch), " of scratch on a GPU, but the plan has ",
                             bytesText(call.device_scratch()), ": compile it for one (--target cuda:sm_90)"));
  for (const Entry& entry : kFunctions)
    if (entry.name == call.function()) return entry.make(call, seed, blas);
  return Status::error(cat("unknown library function '", call.function(), "'"));
}

}  // namespace sheaf::cuda
