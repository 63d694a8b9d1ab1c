#include "tools/sheaf/Trained.h"

#include "ir/Plan/PlanDialect.h"
#include "ir/Train/TrainDialect.h"
#include "ir/Zero/ZeroDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/Evaluation.h"
#include "runtime/base/Text.h"

namespace sheaf::tool {
namespace {

void setTraining(mlir::ModuleOp module, const TrainedOptions& o) {
  mlir::Builder b(module.getContext());
  auto rate = module->getAttrOfType<mlir::FloatAttr>("train.lr");
  // Without an option: adamw, or the rules of the model's training_info, which have other names.
  bool own = !module.lookupSymbol<train::OptimizerOp>("optimizer");
  std::string optimizer = !o.optimizer.empty() ? o.optimizer : own ? "the model's own" : "adamw";
  auto named = [&](llvm::StringRef name, mlir::Attribute value) { return b.getNamedAttr(name, value); };
  module->setAttr(
      "train.training",
      b.getDictionaryAttr({named("optimizer", b.getStringAttr(optimizer)),
                           named("learning_rate", b.getF64FloatAttr(rate ? rate.getValueAsDouble() : 0)),
                           named("schedule", plan_ir::ScheduleKindAttr::get(b.getContext(), o.schedule.kind())),
                           named("warmup", b.getI64IntegerAttr(o.schedule.warmup())),
                           named("steps", b.getI64IntegerAttr(o.schedule.steps())),
                           named("min", b.getF64FloatAttr(o.schedule.min())),
                           named("clip_norm", b.getF64FloatAttr(o.clipNorm)),
                           named("on_nan", plan_ir::OnNanAttr::get(b.getContext(), o.onNan)),
                           named("seed", b.getI64IntegerAttr(o.seed)),
                           named("reduce_order", plan_ir::ReduceOrderAttr::get(b.getContext(), o.reduceOrder))}));
  module->removeAttr("train.lr");
}

}  // namespace

Expected<std::pair<std::string, int64_t>> parseBinding(const std::string& text) {
  size_t equals = text.find('=');
  int64_t size = 0;
  if (equals == 0 || equals == std::string::npos || !parseInteger(text.substr(equals + 1), size) || size < 1)
    return Status::error("expected DIM=K with K of at least 1");
  return std::pair(text.substr(0, equals), size);
}

std::unique_ptr<mlir::MLIRContext> makeContext() {
  mlir::DialectRegistry registry;
  registry.insert<mlir::func::FuncDialect, train::TrainDialect, zero::ZeroDialect, plan_ir::PlanDialect>();
  auto context = std::make_unique<mlir::MLIRContext>(registry);
  context->loadAllAvailableDialects();
  return context;
}

// The graph's evaluation, up to the same phase.
static mlir::OwningOpRef<mlir::ModuleOp> importEvaluation(mlir::MLIRContext& context, const TrainedOptions& options,
                                                          bool importOnly) {
  frontend::ImportOptions import = options.import;
  import.form = options.evaluationOnly ? frontend::Form::kOutputs : frontend::Form::kEvaluation;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  {
    // Where the step was imported its warnings have been printed; none is about training in a graph of outputs alone.
    mlir::ScopedDiagnosticHandler errors(&context, [](mlir::Diagnostic& diagnostic) {
      return mlir::success(diagnostic.getSeverity() == mlir::DiagnosticSeverity::Warning);
    });
    module = frontend::importOnnx(context, options.model, import);
  }
  if (!module) return {};
  mlir::PassManager passes(&context);
  addImportPasses(passes);
  if (!importOnly) addEvaluationPasses(passes, options.pipeline);
  if (mlir::failed(passes.run(*module))) return {};
  becomeEvaluation(*module);
  return module;
}

mlir::OwningOpRef<mlir::ModuleOp> importModel(mlir::MLIRContext& context, const TrainedOptions& options,
                                              bool importOnly) {
  if (options.evaluationOnly) return importEvaluation(context, options, importOnly);
  mlir::OwningOpRef<mlir::ModuleOp> module = frontend::importOnnx(context, options.model, options.import);
  if (!module) return {};
  mlir::PassManager passes(&context);
  addImportPasses(passes);
  if (!importOnly) addTrainPasses(passes, options.pipeline);
  if (mlir::failed(passes.run(*module))) return {};
  if (!importOnly) setTraining(*module, options);
  if (!options.evaluation) return module;
  mlir::OwningOpRef<mlir::ModuleOp> evaluation = importEvaluation(context, options, importOnly);
  if (!evaluation || mlir::failed(attachEvaluation(*module, *evaluation))) return {};
  return module;
}

}  // namespace sheaf::tool
