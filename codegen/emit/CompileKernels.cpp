#include "codegen/emit/Emit.h"

using namespace mlir;

namespace sheaf::codegen {

LogicalResult compileKernels(plan_ir::ProgramOp program, const CpuTargetOptions& options) {
  SmallVector<plan_ir::KernelOp> kernels;
  SmallVector<train::FusionOp> fusions;
  for (auto kernel : program.getBody().front().getOps<plan_ir::KernelOp>()) {
    kernels.push_back(kernel);
    fusions.push_back(cast<train::FusionOp>(kernel.getFusion().front().front()));
  }
  if (kernels.empty()) return success();
  std::vector<std::string> symbols;
  FailureOr<CpuImage> image = compileFusions(fusions, symbols, options);
  if (failed(image)) return failure();
  OpBuilder builder(kernels.front());
  SmallVector<StringRef> features(image->features.begin(), image->features.end());
  SmallVector<int64_t> offsets, none(kernels.size(), 0);
  for (const std::string& symbol : symbols) offsets.push_back(image->entries.at(symbol));
  plan_ir::ImageOp::create(builder, program.getLoc(), "cpu", image->cpu, builder.getStrArrayAttr(features), offsets,
                           none, none, image->code);
  for (auto [kernel, symbol] : llvm::zip(kernels, symbols)) {
    kernel.setSymbol(symbol);
    kernel.getFusion().getBlocks().clear();
  }
  return success();
}

}  // namespace sheaf::codegen
