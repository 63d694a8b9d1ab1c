#include "tools/sheaf/OperatorFacts.h"

#include <algorithm>

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "passes/Pipeline.h"
#include "passes/plan/Finish.h"

namespace sheaf::tool {
namespace {

// Whether an op was made of the sample's node. A kernel is at the places of all its ops.
bool isOfSample(mlir::Location location) {
  if (auto name = mlir::dyn_cast<mlir::NameLoc>(location)) return name.getName() == frontend::kSampleNode;
  if (auto fused = mlir::dyn_cast<mlir::FusedLoc>(location)) return llvm::any_of(fused.getLocations(), isOfSample);
  return false;
}

void addOnce(std::vector<std::string>& list, llvm::StringRef name) {
  if (!llvm::is_contained(list, name)) list.push_back(name.str());
}

std::vector<std::string> loweringOf(mlir::ModuleOp module) {
  std::vector<std::string> ops;
  for (auto step : module.getOps<mlir::func::FuncOp>())
    for (mlir::Operation& op : step.getBody().front()) {
      if (mlir::isa<train::ConstantOp, train::UpdateOp>(op) || !isOfSample(op.getLoc())) continue;
      llvm::StringRef name = op.getName().getStringRef();
      name.consume_front("train.");
      addOnce(ops, name);
    }
  return ops;
}

// What executes the step on one kind of device. `trained`, if given: the parameters with a gradient.
mlir::FailureOr<std::vector<std::string>> executionOf(mlir::ModuleOp module, bool gpu,
                                                      std::vector<std::string>* trained) {
  mlir::OwningOpRef<mlir::ModuleOp> copy(module.clone());
  PipelineOptions options;
  options.optimizer = "sgd";
  options.cpu = !gpu, options.gpu = options.gemmEpilogues = gpu;
  mlir::PassManager train(module.getContext()), rest(module.getContext());
  addImportPasses(train);
  addTrainPasses(train, options);
  if (mlir::failed(train.run(*copy))) return mlir::failure();
  if (trained) copy->walk([&](train::UpdateOp update) { trained->push_back(update.getParameter().str()); });
  addZeroPasses(rest, options);
  addFusePasses(rest);
  if (mlir::failed(rest.run(*copy))) return mlir::failure();
  mlir::FailureOr<plan_ir::Draft> draft =
      plan_ir::lowerToPlan(*copy, {.maxThreads = options.maxThreads, .cpu = !gpu, .gpu = gpu});
  if (mlir::failed(draft)) return mlir::failure();
  std::vector<std::string> names;
  if (llvm::any_of(draft->fusions, [](mlir::Operation* fusion) { return isOfSample(fusion->getLoc()); }))
    names.push_back("kernel");
  for (const plan::Instruction& instruction : draft->plan.body())
    if (instruction.has_call() && instruction.label() == frontend::kSampleNode)
      addOnce(names, instruction.call().function());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

OperatorFacts factsOf(mlir::MLIRContext& context, const frontend::RegisteredOperator& op) {
  OperatorFacts facts;
  mlir::ScopedDiagnosticHandler handler(&context, [&](mlir::Diagnostic& diagnostic) {
    if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error && facts.error.empty())
      facts.error = diagnostic.str();
    return mlir::success();
  });
  auto module = frontend::importSample(context, op);
  std::vector<std::string> trained;
  mlir::FailureOr<std::vector<std::string>> cpu, cuda;
  if (module) {
    facts.lowering = loweringOf(*module);
    cpu = executionOf(*module, false, &trained);
    cuda = executionOf(*module, true, nullptr);
  }
  if (mlir::failed(cpu) || mlir::failed(cuda)) {
    if (facts.error.empty()) facts.error = "the sample cannot be lowered";
    return facts;
  }
  facts.error.clear();
  facts.cpu = std::move(*cpu), facts.cuda = std::move(*cuda);
  llvm::StringRef operands = llvm::StringRef(op.sample).split(';').first;
  for (size_t at = 0; (at = operands.find("f[", at)) != llvm::StringRef::npos; ++at) ++facts.floats;
  for (llvm::StringRef name : trained) {
    int64_t place = 0;
    name.consume_front("m.");
    if (name.consume_front("f") && !name.getAsInteger(10, place)) facts.gradients.push_back(place);
  }
  std::sort(facts.gradients.begin(), facts.gradients.end());
  return facts;
}

}  // namespace sheaf::tool
