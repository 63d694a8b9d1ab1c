#include <set>

#include "codegen/cpu/CpuKernels.h"
#include "codegen/cuda/CudaKernels.h"
#include "codegen/emit/Emit.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::codegen {
namespace {

using Fusions = SmallVector<train::FusionOp>;

// Of each fusion.
struct Compiled {
  std::vector<std::string> symbols;
  std::vector<KernelOperands> operands;
};

// Appends an image of machine code for processors; `offsets`: of each kernel's code.
void appendImage(plan_ir::ProgramOp program, OpBuilder& builder, StringRef target, const CpuImage& image,
                 ArrayRef<int64_t> offsets) {
  SmallVector<StringRef> features(image.features.begin(), image.features.end());
  const SmallVector<int64_t> none(offsets.size(), 0);
  plan_ir::ImageOp::create(builder, program.getLoc(), target, image.cpu, builder.getStrArrayAttr(features), offsets,
                           none, none, image.code, StringAttr());
}

// Appends the image of all kernels for the CPU.
LogicalResult compileForCpu(plan_ir::ProgramOp program, OpBuilder& builder, const Fusions& fusions,
                            const KernelTargets& targets, Compiled& compiled, std::vector<std::string>& notes) {
  FailureOr<CpuImage> image = compileFusions(fusions, compiled.symbols, {targets.cpu, targets.threads});
  if (failed(image)) return failure();
  SmallVector<int64_t> offsets;
  for (auto [symbol, operands] : llvm::zip(compiled.symbols, compiled.operands)) {
    offsets.push_back(static_cast<int64_t>(image->entries.at(symbol)));
    operands.join(image->operands.at(symbol));
  }
  appendImage(program, builder, "cpu", *image, offsets);
  notes.push_back(
      cat("kernels for cpu (", image->cpu, "): ", image->entries.size(), ", ", bytesText(image->code.size())));
  return success();
}

// Appends the image of the kernels that are launched on the host, if there are any.
LogicalResult compileForHost(plan_ir::ProgramOp program, OpBuilder& builder, const Fusions& fusions,
                             const KernelTargets& targets, Compiled& compiled, std::vector<std::string>& notes) {
  std::set<int64_t> launched;
  program.walk([&](plan_ir::LaunchOp launch) {
    if (launch.getOnHost()) launched.insert(launch.getKernel());
  });
  if (launched.empty()) return success();
  Fusions onHost;
  for (int64_t kernel : launched) onHost.push_back(fusions[static_cast<size_t>(kernel)]);
  // Any machine that has such a GPU has such processors; this one may be another.
  const std::string cpu = targets.cpu == KernelTargets().cpu ? "x86-64-v3" : targets.cpu;
  std::vector<std::string> symbols;
  FailureOr<CpuImage> image = compileFusions(onHost, symbols, {cpu, targets.threads});
  if (failed(image)) return failure();
  SmallVector<int64_t> offsets(fusions.size(), static_cast<int64_t>(image->code.size()));
  for (auto [kernel, symbol] : llvm::zip(launched, symbols)) {
    offsets[static_cast<size_t>(kernel)] = static_cast<int64_t>(image->entries.at(symbol));
    compiled.operands[static_cast<size_t>(kernel)].join(image->operands.at(symbol));
  }
  appendImage(program, builder, "host", *image, offsets);
  notes.push_back(cat("kernels for updates on the host (", image->cpu, "): ", image->entries.size(), ", ",
                      bytesText(image->code.size())));
  return success();
}

LogicalResult compileForGpu(plan_ir::ProgramOp program, OpBuilder& builder, const Fusions& fusions,
                            const KernelTarget& target, unsigned threads, Compiled& compiled,
                            std::vector<std::string>& notes) {
  FailureOr<CudaImage> image = compileCudaKernels(fusions, {target.architecture, threads});
  if (failed(image)) return failure();
  SmallVector<int64_t> none(fusions.size(), 0), grids, blocks;
  compiled.symbols.clear();
  for (auto [kernel, operands] : llvm::zip(image->kernelOf, compiled.operands)) {
    compiled.symbols.push_back(image->kernels[kernel].symbol);
    operands.join(image->kernels[kernel].operands);
    grids.push_back(image->kernels[kernel].mapping.grid);
    blocks.push_back(image->kernels[kernel].mapping.threads());
  }
  plan_ir::ImageOp::create(builder, program.getLoc(), target.name, image->chip, builder.getStrArrayAttr({}), none,
                           grids, blocks, image->code, builder.getStringAttr(image->toolkit));
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
  Compiled compiled{{}, std::vector<KernelOperands>(fusions.size())};
  for (const KernelTarget& target : targets.list)
    if (failed(target.isGpu() ? compileForGpu(program, builder, fusions, target, targets.threads, compiled, notes)
                              : compileForCpu(program, builder, fusions, targets, compiled, notes)))
      return failure();
  if (!targets.hasCpu() && failed(compileForHost(program, builder, fusions, targets, compiled, notes)))
    return failure();
  for (auto [kernel, symbol, operands] : llvm::zip(kernels, compiled.symbols, compiled.operands)) {
    kernel.setSymbol(symbol);
    kernel.setAccess(operands.access);
    kernel.setInPlace(operands.inPlace);
    kernel.getFusion().getBlocks().clear();
  }
  return success();
}

}  // namespace sheaf::codegen
