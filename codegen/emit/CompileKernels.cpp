#include <set>

#include "codegen/cpu/CpuKernels.h"
#include "codegen/cuda/CudaKernels.h"
#include "codegen/emit/Emit.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"

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
void appendImage(plan::Plan& plan, const std::string& target, CpuImage& image, const std::vector<uint64_t>& offsets) {
  plan::KernelImage& out = *plan.add_images();
  out.set_target(target);
  out.set_cpu(image.cpu);
  for (const std::string& feature : image.features) out.add_features(feature);
  out.set_code(std::move(image.code));
  for (uint64_t offset : offsets) out.add_entries()->set_offset(offset);
}

// Appends the image of all kernels for the CPU.
LogicalResult compileForCpu(plan::Plan& plan, const Fusions& fusions, const KernelTargets& targets, Compiled& compiled,
                            std::vector<std::string>& notes) {
  FailureOr<CpuImage> image = compileFusions(fusions, compiled.symbols, {targets.cpu, targets.threads});
  if (failed(image)) return failure();
  std::vector<uint64_t> offsets;
  for (auto [symbol, operands] : llvm::zip(compiled.symbols, compiled.operands)) {
    offsets.push_back(image->entries.at(symbol));
    operands.join(image->operands.at(symbol));
  }
  notes.push_back(
      cat("kernels for cpu (", image->cpu, "): ", image->entries.size(), ", ", bytesText(image->code.size())));
  appendImage(plan, "cpu", *image, offsets);
  return success();
}

// Appends the image of the kernels that are launched on the host, if there are any.
LogicalResult compileForHost(plan::Plan& plan, const Fusions& fusions, const KernelTargets& targets, Compiled& compiled,
                             std::vector<std::string>& notes) {
  std::set<uint32_t> launched;
  plan::forEachInstruction(plan, [&](const plan::Instruction& instruction) {
    if (plan::isOnHost(instruction)) launched.insert(instruction.kernel().kernel());
  });
  if (launched.empty()) return success();
  Fusions onHost;
  for (uint32_t kernel : launched) onHost.push_back(fusions[kernel]);
  // Any machine that has such a GPU has such processors; this one may be another.
  const std::string cpu = targets.cpu == KernelTargets().cpu ? "x86-64-v3" : targets.cpu;
  std::vector<std::string> symbols;
  FailureOr<CpuImage> image = compileFusions(onHost, symbols, {cpu, targets.threads});
  if (failed(image)) return failure();
  std::vector<uint64_t> offsets(fusions.size(), image->code.size());
  for (auto [kernel, symbol] : llvm::zip(launched, symbols)) {
    offsets[kernel] = image->entries.at(symbol);
    compiled.operands[kernel].join(image->operands.at(symbol));
  }
  notes.push_back(cat("kernels for updates on the host (", image->cpu, "): ", image->entries.size(), ", ",
                      bytesText(image->code.size())));
  appendImage(plan, "host", *image, offsets);
  return success();
}

LogicalResult compileForGpu(plan::Plan& plan, const Fusions& fusions, const KernelTarget& target, unsigned threads,
                            Compiled& compiled, std::vector<std::string>& notes) {
  FailureOr<CudaImage> image = compileCudaKernels(fusions, {target.architecture, threads});
  if (failed(image)) return failure();
  plan::KernelImage& out = *plan.add_images();
  out.set_target(target.name);
  out.set_cpu(image->chip);
  out.set_toolkit(image->toolkit);
  out.set_code(std::move(image->code));
  compiled.symbols.clear();
  for (auto [kernel, operands] : llvm::zip(image->kernelOf, compiled.operands)) {
    compiled.symbols.push_back(image->kernels[kernel].symbol);
    operands.join(image->kernels[kernel].operands);
    plan::KernelEntry& entry = *out.add_entries();
    entry.set_grid(static_cast<uint32_t>(image->kernels[kernel].mapping.grid));
    entry.set_threads(static_cast<uint32_t>(image->kernels[kernel].mapping.threads()));
  }
  int registers = 0, spilled = 0;
  for (const CudaKernel& kernel : image->kernels) {
    registers = std::max(registers, kernel.usage.registers);
    spilled += kernel.usage.spillBytes;
  }
  notes.push_back(cat("kernels for ", target.name, ": ", image->kernels.size(), ", ", bytesText(out.code().size()),
                      ", at most ", registers, " registers a thread, ", spilled, " bytes spilled"));
  for (const CudaKernel& kernel : image->kernels)
    notes.push_back(cat("  ", kernel.symbol, ": ", kernel.mapping.grid, " blocks of ", kernel.mapping.threads(),
                        " threads, ", kernel.mapping.perRow, " a row, ", kernel.mapping.chunks, " vectors of ",
                        kernel.mapping.lanes, " at once; ", kernel.usage.registers, " registers, ",
                        kernel.usage.sharedBytes, " bytes shared"));
  return success();
}

}  // namespace

LogicalResult compileKernels(plan_ir::Draft& draft, const KernelTargets& targets, std::vector<std::string>& notes) {
  if (draft.fusions.empty()) return success();
  Fusions fusions;
  for (Operation* fusion : draft.fusions) {
    assert(fusion && "the lowering leaves a fusion for each kernel");
    fusions.push_back(cast<train::FusionOp>(fusion));
  }
  // The same names on every target: they are those of the distinct fusions.
  Compiled compiled{{}, std::vector<KernelOperands>(fusions.size())};
  for (const KernelTarget& target : targets.list)
    if (failed(target.isGpu() ? compileForGpu(draft.plan, fusions, target, targets.threads, compiled, notes)
                              : compileForCpu(draft.plan, fusions, targets, compiled, notes)))
      return failure();
  if (!targets.hasCpu() && failed(compileForHost(draft.plan, fusions, targets, compiled, notes))) return failure();
  for (auto [kernel, symbol, operands] :
       llvm::zip(*draft.plan.mutable_kernels(), compiled.symbols, compiled.operands)) {
    kernel.set_symbol(symbol);
    for (int64_t access : operands.access) kernel.add_operand_access(static_cast<plan::Access>(access));
    for (int64_t number : operands.inPlace) kernel.add_in_place(static_cast<uint32_t>(number));
  }
  draft.fusions.clear();
  return success();
}

}  // namespace sheaf::codegen
