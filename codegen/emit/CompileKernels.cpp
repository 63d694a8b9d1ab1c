#include "codegen/cpu/CpuKernels.h"
#include "codegen/cuda/CudaKernels.h"
#include "codegen/emit/Emit.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::codegen {
namespace {

using Fusions = SmallVector<train::FusionOp>;

// Appends the image of all kernels for the CPU; `symbols` receives the name of each.
LogicalResult compileForCpu(plan_ir::ProgramOp program, OpBuilder& builder, const Fusions& fusions,
                            const KernelTargets& targets, std::vector<std::string>& symbols,
                            std::vector<std::string>& notes) {
  FailureOr<CpuImage> image = compileFusions(fusions, symbols, {targets.cpu, targets.threads});
  if (failed(image)) return failure();
  SmallVector<StringRef> features(image->features.begin(), image->features.end());
  SmallVector<int64_t> offsets, none(fusions.size(), 0);
  for (const std::string& symbol : symbols) offsets.push_back(static_cast<int64_t>(image->entries.at(symbol)));
  plan_ir::ImageOp::create(builder, program.getLoc(), "cpu", image->cpu, builder.getStrArrayAttr(features), offsets,
                           none, none, image->code);
  notes.push_back(
      cat("kernels for cpu (", image->cpu, "): ", image->entries.size(), ", ", bytesText(image->code.size())));
  return success();
}

LogicalResult compileForGpu(plan_ir::ProgramOp program, OpBuilder& builder, const Fusions& fusions,
                            const KernelTarget& target, unsigned threads, std::vector<std::string>& symbols,
                            std::vector<std::string>& notes) {
  FailureOr<CudaImage> image = compileCudaKernels(fusions, {target.architecture, threads});
  if (failed(image)) return failure();
  SmallVector<int64_t> none(fusions.size(), 0), grids, blocks;
  symbols.clear();
  for (size_t kernel : image->kernelOf) {
    symbols.push_back(image->kernels[kernel].symbol);
    grids.push_back(image->kernels[kernel].mapping.grid);
    blocks.push_back(image->kernels[kernel].mapping.threads());
  }
  plan_ir::ImageOp::create(builder, program.getLoc(), target.name, image->chip, builder.getStrArrayAttr({}), none,
                           grids, blocks, image->code);
  int registers = 0, spilled = 0;
  for (const CudaKernel& kernel : image->kernels) {
    registers = std::max(registers, kernel.usage.registers);
    spilled += kernel.usage.spillBytes;
  }
  notes.push_back(cat("kernels for ", target.name, ": ", image->kernels.size(), ", ", bytesText(image->code.size()),
                      ", at most ", registers, " registers a thread, ", spilled, " bytes spilled"));
  for (const CudaKernel& kernel : image->kernels)
    notes.push_back(cat("  ", kernel.symbol, ": ", kernel.mapping.grid, " blocks of ", kernel.mapping.threads(),
                        " threads, ", kernel.mapping.perRow, " a row, ", kernel.mapping.chunks, " vectors of ",
                        kernel.mapping.lanes, " at once; ", kernel.usage.registers, " registers, ",
                        kernel.usage.sharedBytes, " bytes shared"));
  return success();
}

}  // namespace

LogicalResult compileKernels(plan_ir::ProgramOp program, const KernelTargets& targets,
                             std::vector<std::string>& notes) {
  SmallVector<plan_ir::KernelOp> kernels;
  Fusions fusions;
  for (auto kernel : program.getBody().front().getOps<plan_ir::KernelOp>()) {
    kernels.push_back(kernel);
    fusions.push_back(cast<train::FusionOp>(kernel.getFusion().front().front()));
  }
  if (kernels.empty()) return success();
  OpBuilder builder(kernels.front());
  // The same names on every target: they are those of the distinct fusions.
  std::vector<std::string> symbols;
  for (const KernelTarget& target : targets.list)
    if (failed(target.isGpu() ? compileForGpu(program, builder, fusions, target, targets.threads, symbols, notes)
                              : compileForCpu(program, builder, fusions, targets, symbols, notes)))
      return failure();
  for (auto [kernel, symbol] : llvm::zip(kernels, symbols)) {
    kernel.setSymbol(symbol);
    kernel.getFusion().getBlocks().clear();
  }
  return success();
}

}  // namespace sheaf::codegen
