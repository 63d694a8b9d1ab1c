#include "codegen/emit/Targets.h"

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

FailureOr<std::vector<KernelTarget>> parseTargets(StringRef text, std::string& error) {
  std::vector<KernelTarget> result;
  for (StringRef name : llvm::split(text, ',')) {
    KernelTarget target;
    if (failed(parseTarget(name.trim(), target, error))) return failure();
    if (llvm::any_of(result, [&](const KernelTarget& other) { return other.name == target.name; })) {
      error = "the target '" + target.name + "' is named twice";
      return failure();
    }
    result.push_back(target);
  }
  return result;
}

LogicalResult checkToolkit(const KernelTargets& targets, std::string& error) {
  for (const KernelTarget& target : targets.list)
    if (target.isGpu() && failed(findToolkit(error))) {
      error = "--target " + target.name + " " + error;
      return failure();
    }
  return success();
}

}  // namespace sheaf::codegen
