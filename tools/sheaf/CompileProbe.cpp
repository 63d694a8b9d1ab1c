#include "tools/sheaf/CompileProbe.h"

#include <string>
#include <vector>

#include "codegen/cpu/CpuKernels.h"
#include "codegen/cuda/CudaKernels.h"
#include "ir/Train/FusionCost.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "runtime/plan/Probe.h"
#include "tools/sheaf/Diagnostics.h"
#include "tools/sheaf/ProbePrograms.h"
#include "tools/sheaf/Trained.h"

namespace sheaf::tool {
namespace {

uint64_t bytesOf(mlir::Type type) {
  auto tensor = mlir::cast<mlir::RankedTensorType>(type);
  return static_cast<uint64_t>(tensor.getNumElements()) * tensor.getElementTypeBitWidth() / 8;
}

// Results lie where the first operands of their type that no other result took do, if the fusion reads these at the
// index it writes.
plan::SampleKernel sampleOf(train::FusionOp fusion, int kernel, bool inPlace) {
  plan::SampleKernel sample{kernel, {}};
  sample.sharesWith.assign(fusion->getNumOperands(), -1);
  std::vector<int64_t> free(fusion.getElementwise().begin(), fusion.getElementwise().end());
  for (mlir::Type type : fusion.getResultTypes()) {
    auto at = std::find_if(free.begin(), free.end(),
                           [&](int64_t i) { return inPlace && fusion.getOperands()[i].getType() == type; });
    sample.sharesWith.push_back(at == free.end() ? -1 : static_cast<int>(*at));
    if (at != free.end()) free.erase(at);
  }
  return sample;
}

using Fusions = std::vector<train::FusionOp>;

// Append the image of all kernels. `symbols` receives the name of each, the same for every target; `operands` are
// joined with what each does with them.
bool addCpuImage(const Fusions& fusions, const codegen::KernelTargets& targets, std::vector<std::string>& symbols,
                 std::vector<codegen::KernelOperands>& operands, plan::Plan& probe) {
  mlir::FailureOr<codegen::CpuImage> image = codegen::compileFusions(fusions, symbols, {targets.cpu, targets.threads});
  if (mlir::failed(image)) return false;
  plan::KernelImage* out = probe.add_images();
  out->set_target("cpu");
  out->set_cpu(image->cpu);
  for (const std::string& feature : image->features) out->add_features(feature);
  out->set_code(image->code);
  for (size_t i = 0; i < symbols.size(); ++i) {
    out->add_entries()->set_offset(image->entries.at(symbols[i]));
    operands[i].join(image->operands.at(symbols[i]));
  }
  return true;
}

bool addGpuImage(const Fusions& fusions, const codegen::KernelTarget& target, unsigned threads,
                 std::vector<std::string>& symbols, std::vector<codegen::KernelOperands>& operands, plan::Plan& probe) {
  mlir::FailureOr<codegen::CudaImage> image = codegen::compileCudaKernels(fusions, {target.architecture, threads});
  if (mlir::failed(image)) return false;
  plan::KernelImage* out = probe.add_images();
  out->set_target(target.name);
  out->set_cpu(image->chip);
  out->set_toolkit(image->toolkit);
  out->set_code(image->code);
  symbols.clear();
  for (size_t index : image->kernelOf) {
    const codegen::CudaKernel& kernel = image->kernels[index];
    operands[symbols.size()].join(kernel.operands);
    symbols.push_back(kernel.symbol);
    plan::KernelEntry* entry = out->add_entries();
    entry->set_grid(static_cast<uint32_t>(kernel.mapping.grid));
    entry->set_threads(static_cast<uint32_t>(kernel.mapping.threads()));
  }
  return true;
}

}  // namespace

bool compileProbe(const codegen::KernelTargets& targets, int64_t ranks, plan::Plan& probe) {
  std::unique_ptr<mlir::MLIRContext> context = makeContext();
  DiagnosticPrinter diagnostics(*context);
  std::vector<ProbeProgram> programs;
  auto add = [&](std::vector<ProbeProgram> more) { programs.insert(programs.end(), more.begin(), more.end()); };
  if (llvm::any_of(targets.list, [](const codegen::KernelTarget& target) { return !target.isGpu(); }))
    add(cpuProbePrograms());
  if (targets.hasGpu()) add(gpuProbePrograms());
  std::vector<mlir::OwningOpRef<mlir::ModuleOp>> modules;
  Fusions fusions;
  std::vector<plan::SampleKernel> samples;
  for (const ProbeProgram& program : programs) {
    auto module = mlir::parseSourceString<mlir::ModuleOp>(program.text, context.get());
    mlir::PassManager passes(context.get());
    passes.addPass(train::createDecompose());
    passes.addPass(train::createAssignFusions());
    passes.addPass(train::createFuse());
    if (!module || mlir::failed(passes.run(*module))) return false;
    module->walk([&](train::FusionOp fusion) {
      fusions.push_back(fusion);
      samples.push_back(sampleOf(fusion, static_cast<int>(fusions.size()) - 1, program.inPlace));
    });
    modules.push_back(std::move(module));
  }
  std::vector<std::string> symbols;
  std::vector<codegen::KernelOperands> operands(fusions.size());
  for (const codegen::KernelTarget& target : targets.list)
    if (!(target.isGpu() ? addGpuImage(fusions, target, targets.threads, symbols, operands, probe)
                         : addCpuImage(fusions, targets, symbols, operands, probe)))
      return false;
  for (size_t i = 0; i < fusions.size(); ++i) {
    plan::Kernel* kernel = probe.add_kernels();
    kernel->set_symbol(symbols[i]);
    kernel->set_rows(fusions[i].getRows());
    kernel->set_block(fusions[i].getBlock());
    kernel->set_operations(train::fusionOperations(fusions[i]));
    for (int64_t access : operands[i].access) kernel->add_operand_access(static_cast<plan::Access>(access));
    for (int64_t number : operands[i].inPlace) kernel->add_in_place(static_cast<uint32_t>(number));
    for (mlir::Type type : fusions[i]->getOperandTypes()) kernel->add_operand_bytes(bytesOf(type));
    for (mlir::Type type : fusions[i]->getResultTypes()) kernel->add_operand_bytes(bytesOf(type));
  }
  plan::makeProbe(probe, ranks, samples);
  return true;
}

}  // namespace sheaf::tool
