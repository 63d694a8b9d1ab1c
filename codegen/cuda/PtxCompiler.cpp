#include "codegen/cuda/PtxCompiler.h"

#include <mutex>

#include "codegen/cuda/GpuRowKernel.h"
#include "codegen/fusion/Lowering.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "mlir/Conversion/GPUToNVVM/GPUToNVVMPass.h"
#include "mlir/Conversion/LLVMCommon/ConversionTarget.h"
#include "mlir/Conversion/LLVMCommon/TypeConverter.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/GPU/GPUToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/DialectConversion.h"

using namespace mlir;

namespace sheaf::codegen {
namespace {

constexpr const char* kTriple = "nvptx64-nvidia-cuda";

const llvm::Target* gpuTarget(std::string& error) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
  return llvm::TargetRegistry::lookupTarget(llvm::Triple(kTriple), error);
}

LogicalResult lowerToNvvm(gpu::GPUModuleOp module) {
  if (failed(lowerLoops(module))) return failure();
  MLIRContext* context = module.getContext();
  LowerToLLVMOptions options(context);
  options.overrideIndexBitwidth(64);
  LLVMTypeConverter converter(context, options);
  configureGpuToNVVMTypeConverter(converter);
  RewritePatternSet patterns(context);
  populateGpuToNVVMConversionPatterns(converter, patterns);
  populateKernelToLLVMPatterns(converter, patterns);
  LLVMConversionTarget target(*context);
  target.addLegalDialect<NVVM::NVVMDialect>();
  target.addIllegalDialect<gpu::GPUDialect>();
  target.addLegalOp<gpu::GPUModuleOp>();
  return applyPartialConversion(module, target, std::move(patterns));
}

}  // namespace

FailureOr<std::unique_ptr<llvm::TargetMachine>> createGpuTargetMachine(int architecture, std::string& error) {
  const std::string chip = "sm_" + std::to_string(architecture);
  if (architecture < kLeastArchitecture) {
    error = "kernels for GPUs need at least sm_" + std::to_string(kLeastArchitecture) + ", not " + chip;
    return failure();
  }
  const llvm::Target* target = gpuTarget(error);
  if (!target) return failure();
  std::unique_ptr<llvm::MCSubtargetInfo> known(target->createMCSubtargetInfo(llvm::Triple(kTriple), "", ""));
  if (!known || !known->isCPUStringValid(chip)) {
    error = "unknown GPU '" + chip + "'; use sm_80, sm_90, sm_100 or another that LLVM knows";
    return failure();
  }
  llvm::TargetOptions options;
  // A fused multiply-add comes about only where the IR has one.
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(
      llvm::Triple(kTriple), chip, "", options, std::nullopt, std::nullopt, llvm::CodeGenOptLevel::Aggressive));
  return machine;
}

std::unique_ptr<MLIRContext> createGpuContext() {
  DialectRegistry registry;
  registry.insert<arith::ArithDialect, cf::ControlFlowDialect, gpu::GPUDialect, LLVM::LLVMDialect, math::MathDialect,
                  NVVM::NVVMDialect, scf::SCFDialect, vector::VectorDialect>();
  registerBuiltinDialectTranslation(registry);
  registerGPUDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
  auto context = std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  context->loadAllAvailableDialects();
  return context;
}

FailureOr<std::string> compileToPtx(gpu::GPUModuleOp module, llvm::TargetMachine& machine, std::string& error) {
  ScopedDiagnosticHandler diagnostics(module.getContext(), [&](Diagnostic& diagnostic) {
    llvm::raw_string_ostream(error) << diagnostic << "; ";
    return success();
  });
  if (failed(lowerToNvvm(module))) return failure();
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> llvmModule = translateModuleToLLVMIR(module, context, "kernels");
  if (!llvmModule) return failure();
  for (const llvm::Function& function : *llvmModule)
    if (function.isDeclaration() && !function.isIntrinsic()) {
      error = "a kernel calls '" + function.getName().str() + "', which is not part of it";
      return failure();
    }
  SmallVector<char, 0> ptx;
  if (failed(emitCode(*llvmModule, machine, llvm::CodeGenFileType::AssemblyFile, ptx, error))) return failure();
  return std::string(ptx.begin(), ptx.end());
}

}  // namespace sheaf::codegen
