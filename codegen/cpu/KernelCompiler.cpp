#include "codegen/cpu/KernelCompiler.h"

#include <mutex>

#include "codegen/fusion/Lowering.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include "mlir/Conversion/LLVMCommon/ConversionTarget.h"
#include "mlir/Conversion/LLVMCommon/TypeConverter.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/DialectConversion.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::codegen {
namespace {

// Instruction sets that generated code may use; other features of a CPU (crypto, virtualisation) do not matter.
constexpr const char* kInstructionSets[] = {
    "avx",     "avx2",       "fma",        "f16c",        "bmi",        "bmi2",         "lzcnt",          "movbe",
    "popcnt",  "avx512f",    "avx512bw",   "avx512cd",    "avx512dq",   "avx512vl",     "avx512fp16",     "avx512bf16",
    "avxvnni", "avx512vnni", "avx512vbmi", "avx512vbmi2", "avx512ifma", "avx512bitalg", "avx512vpopcntdq"};
constexpr const char* kRequired[] = {"avx2", "fma", "f16c"};
constexpr const char* kLevel4[] = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"};

constexpr const char* kTriple = "x86_64-unknown-linux-gnu";

const llvm::Target* x86Target(std::string& error) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
  return llvm::TargetRegistry::lookupTarget(llvm::Triple(kTriple), error);
}

std::unique_ptr<llvm::TargetMachine> machineFor(StringRef cpu, StringRef features, std::string& error) {
  const llvm::Target* target = x86Target(error);
  if (!target) return nullptr;
  llvm::TargetOptions options;
  // A fused multiply-add comes about only where the IR has one.
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(llvm::Triple(kTriple), cpu, features, options,
                                                                          llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                          llvm::CodeGenOptLevel::Default));
}

// The error of a CPU that LLVM does not know. Compilers call the host native, and AMD calls znver4 Zen 4.
std::string unknownCpu(StringRef name, const llvm::MCSubtargetInfo& subtarget) {
  std::vector<std::string> known{"host"};
  for (const llvm::SubtargetSubTypeKV& cpu : subtarget.getAllProcessorDescriptions()) known.push_back(cpu.Key);
  StringRef generation = name;
  const std::string word = name == "native"                              ? "host"
                           : generation.consume_front_insensitive("zen") ? ("znver" + generation).str()
                                                                         : lowerCase(name.str());
  const std::string near = nearest(word, known);
  return "unknown CPU '" + name.str() + "'; " +
         (near.empty() ? "use host, x86-64-v3, x86-64-v4 or an x86 CPU that LLVM knows" : "did you mean " + near + "?");
}

LogicalResult lowerToLLVM(ModuleOp module) {
  if (failed(lowerLoops(module))) return failure();
  LLVMTypeConverter converter(module.getContext());
  RewritePatternSet patterns(module.getContext());
  populateKernelToLLVMPatterns(converter, patterns);
  LLVMConversionTarget target(*module.getContext());
  target.addLegalOp<ModuleOp>();
  return applyFullConversion(module, target, std::move(patterns));
}

}  // namespace

FailureOr<CpuTarget> resolveCpuTarget(StringRef name, std::string& error) {
  CpuTarget target{name.str(), {}};
  if (name == "host") {
    llvm::StringMap<bool> host = llvm::sys::getHostCPUFeatures();
    auto has = [&](const char* feature) { return host.lookup(feature); };
    target.cpu = llvm::all_of(kLevel4, has) ? "x86-64-v4" : "x86-64-v3";
    for (const char* feature : kRequired)
      if (!has(feature)) {
        error = std::string("this machine's CPU has no ") + feature + "; name a CPU to compile for";
        return failure();
      }
  }
  // A machine for a CPU that LLVM does not know would print lines of its own.
  std::unique_ptr<llvm::TargetMachine> machine = machineFor("x86-64-v3", "", error);
  if (!machine) return failure();
  if (!machine->getMCSubtargetInfo()->isCPUStringValid(target.cpu)) {
    error = unknownCpu(target.cpu, *machine->getMCSubtargetInfo());
    return failure();
  }
  machine = machineFor(target.cpu, "", error);
  if (!machine) return failure();
  const llvm::MCSubtargetInfo& subtarget = *machine->getMCSubtargetInfo();
  for (const char* feature : kInstructionSets)
    if (subtarget.checkFeatures(std::string("+") + feature)) target.features.push_back(feature);
  for (const char* feature : kRequired)
    if (!llvm::is_contained(target.features, feature)) {
      error = "CPU '" + target.cpu + "' has no " + feature + "; kernels need at least x86-64-v3";
      return failure();
    }
  return target;
}

std::unique_ptr<llvm::TargetMachine> createTargetMachine(const CpuTarget& target) {
  std::string error;
  return machineFor(target.cpu, "", error);
}

std::unique_ptr<MLIRContext> createKernelContext() {
  DialectRegistry registry;
  registry.insert<arith::ArithDialect, cf::ControlFlowDialect, LLVM::LLVMDialect, math::MathDialect, scf::SCFDialect,
                  vector::VectorDialect>();
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  auto context = std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  context->loadAllAvailableDialects();
  return context;
}

LogicalResult compileKernels(ModuleOp module, llvm::TargetMachine& machine, SmallVectorImpl<char>& object,
                             std::string& error) {
  ScopedDiagnosticHandler diagnostics(module.getContext(), [&](Diagnostic& diagnostic) {
    llvm::raw_string_ostream(error) << diagnostic << "; ";
    return success();
  });
  if (failed(lowerToLLVM(module))) return failure();
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> llvmModule = translateModuleToLLVMIR(module, context, "kernels");
  if (!llvmModule) return failure();
  return emitCode(*llvmModule, machine, llvm::CodeGenFileType::ObjectFile, object, error);
}

}  // namespace sheaf::codegen
