#include "runtime/device/cpu/LibraryFunction.h"

#include <string>
#include <unordered_map>

namespace sheaf::cpu {

std::unique_ptr<const LibraryFunction> makeLibraryFunction(const plan::LibraryCall& call, int64_t seed) {
  if (call.function() == "dropout") return makeDropout(call, seed);
  using Maker = std::unique_ptr<const LibraryFunction> (*)(const plan::LibraryCall&);
  static const std::unordered_map<std::string, Maker> makers = {
      {"gemm", makeGemm},
      {"attention", makeAttention},
      {"attention_grad", makeAttentionGrad},
      {"gather", makeGather},
      {"scatter_add", makeScatterAdd},
      {"copy", makeCopy},
      {"sum_partials", makeSumPartials},
      {"cumsum", makeCumSum},
      {"conv", makeConv},
      {"conv_grad_input", makeConvGradInput},
      {"conv_grad_filter", makeConvGradFilter},
      {"max_pool", makeMaxPool},
      {"max_pool_grad", makeMaxPoolGrad},
      {"square_sum", makeSquareSum},
      {"gradient_norm", makeGradientNorm},
      {"zero", makeZero},
  };
  auto maker = makers.find(call.function());
  return maker == makers.end() ? nullptr : maker->second(call);
}

}  // namespace sheaf::cpu
