#include "codegen/emit/Targets.h"

#include "codegen/cpu/KernelCompiler.h"
#include "codegen/cuda/PtxCompiler.h"
#include "codegen/cuda/Toolkit.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Target/TargetMachine.h"

using namespace mlir;

namespace sheaf::codegen {

bool KernelTargets::hasCpu() const {
  return !llvm::all_of(list, [](const KernelTarget& target) { return target.isGpu(); });
}

bool KernelTargets::hasGpu() const {
  return llvm::any_of(list, [](const KernelTarget& target) { return target.isGpu(); });
}

static LogicalResult parseTarget(StringRef text, KernelTarget& target, std::string& error) {
  target = {text.str(), 0};
  if (text == "cpu") return success();
  constexpr size_t kMostDigits = 3;
  StringRef digits = text;
  if (!digits.consume_front("cuda:sm_") || digits.size() > kMostDigits || digits.starts_with("0") ||
      !llvm::all_of(digits, llvm::isDigit) || digits.getAsInteger(10, target.architecture)) {
    error = "unknown target '" + text.str() + "': expected cpu or cuda:sm_NN, such as cuda:sm_90, or a list of them";
    return failure();
  }
  return failure(failed(createGpuTargetMachine(target.architecture, error)));
}

Expected<std::vector<KernelTarget>> parseTargets(const std::string& text) {
  std::vector<KernelTarget> result;
  for (StringRef name : llvm::split(text, ',')) {
    KernelTarget target;
    std::string error;
    if (failed(parseTarget(name.trim(), target, error))) return Status::error(error);
    if (llvm::any_of(result, [&](const KernelTarget& other) { return other.name == target.name; }))
      return Status::error("the target '" + target.name + "' is named twice");
    result.push_back(target);
  }
  return result;
}

Status checkToolkit(const KernelTargets& targets) {
  std::string error;
  for (const KernelTarget& target : targets.list)
    if (target.isGpu() && failed(findToolkit(error))) return Status::error("--target " + target.name + " " + error);
  return {};
}

Status checkCpu(const KernelTargets& targets) {
  std::string error;
  if (targets.cpu == "host" || succeeded(resolveCpuTarget(targets.cpu, error))) return {};
  return Status::error("--cpu " + targets.cpu + ": " + error);
}

}  // namespace sheaf::codegen
