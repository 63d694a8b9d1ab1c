#include "tools/sheaf/Trained.h"

#include <bit>
#include <vector>

#include "ir/Train/ParameterNames.h"
#include "ir/Train/TrainDialect.h"
#include "ir/Zero/ZeroDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/Evaluation.h"
#include "passes/train/Passes.h"
#include "runtime/base/Decisions.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Text.h"
#include "runtime/io/DataType.h"
#include "runtime/io/Npy.h"
#include "runtime/plan/Schedules.h"

namespace sheaf::tool {

void setTraining(mlir::ModuleOp module, const TrainedOptions& o) {
  mlir::Builder b(module.getContext());
  auto rate = module->getAttrOfType<mlir::FloatAttr>("train.lr");
  auto rule = llvm::dyn_cast_or_null<mlir::StringAttr>(module->removeAttr("train.rule"));
  auto norm = llvm::dyn_cast_or_null<mlir::FloatAttr>(module->removeAttr("train.default_clip_norm"));
  std::string optimizer = rule ? rule.str() : "the model's own";
  llvm::SmallVector<mlir::Attribute> groups;
  if (auto declared = module->getAttrOfType<mlir::ArrayAttr>("train.groups"))
    for (auto group : declared.getAsRange<mlir::DictionaryAttr>()) {
      mlir::NamedAttrList entry(group);
      entry.erase("optimizer");
      groups.push_back(entry.getDictionary(b.getContext()));
    }
  auto named = [&](llvm::StringRef name, mlir::Attribute value) { return b.getNamedAttr(name, value); };
  llvm::SmallVector<mlir::NamedAttribute> training{
      named("optimizer", b.getStringAttr(optimizer)),
      named("learning_rate", b.getF64FloatAttr(rate ? rate.getValueAsDouble() : 0)),
      named("schedule", b.getStringAttr(plan::scheduleText(o.schedule))),
      named("groups", b.getArrayAttr(groups)),
      named("clip_norm", b.getF64FloatAttr(o.clipNorm > 0 || !norm ? o.clipNorm : norm.getValueAsDouble())),
      named("on_nan", b.getStringAttr(plan::word(o.onNan))),
      named("seed", b.getI64IntegerAttr(o.seed)),
      named("reduce_order", b.getStringAttr(plan::word(o.reduceOrder)))};
  if (o.lossScale) training.push_back(named("loss_scale", b.getStringAttr(plan::lossScaleText(*o.lossScale))));
  module->setAttr("train.training", b.getDictionaryAttr(training));
  module->removeAttr("train.lr");
}

void completeLossScale(TrainedOptions& o) {
  if (o.givenLossScale)
    o.lossScale = *o.givenLossScale;
  else if (o.pipeline.precision == train::Precision::f16)
    o.lossScale = **plan::parseLossScale("dynamic");
  o.pipeline.scaled = o.lossScale.has_value();
}

Expected<std::pair<std::string, int64_t>> parseBinding(const std::string& text) {
  size_t equals = text.find('=');
  int64_t size = 0;
  if (equals == 0 || equals == std::string::npos || !parseInteger(text.substr(equals + 1), size) || size < 1)
    return Status::error("expected DIM=K with K of at least 1");
  return std::pair(text.substr(0, equals), size);
}

Expected<std::pair<std::string, int64_t>> parseRows(const std::string& text) {
  const size_t equals = text.find('=');
  int64_t dimension = 0;
  if (equals == 0 || equals == std::string::npos || !parseInteger(text.substr(equals + 1), dimension) || dimension < 0)
    return Status::error("expected INPUT=D, a dimension counted from 0");
  return std::pair(text.substr(0, equals), dimension);
}

Status checkPieces(const frontend::ImportOptions& import) {
  const int64_t micro = import.microBatches, ranks = import.ranks, pieces = import.pieces(), leaves = import.leaves;
  if (leaves == 0) return {};
  const int64_t each = leaves / pieces;
  if (leaves % pieces == 0 && (each & (each - 1)) == 0) return {};
  std::string remedy = cat(pieces, ", ", 2 * pieces, ", ", 4 * pieces, ", ...");
  // Micro-batches may have the odd factor that is too much.
  if (leaves % pieces == 0) remedy += cat(", or --micro-batches ", micro * (each >> std::countr_zero(uint64_t(each))));
  return Status::error(cat("--leaves ", leaves, " is not --ranks ", ranks,
                           micro > 1 ? cat(" times --micro-batches ", micro) : "", " times a power of two: give ",
                           remedy));
}

Expected<int64_t> parseMicroBatches(const std::string& text) {
  int64_t count = 0;
  if (text == "auto") return count;
  if (parseInteger(text, count) && count >= 1 && count <= 65536) return count;
  return Status::error("expected a number from 1 to 65536, or auto");
}

std::string lossesText() {
  std::string text;
  for (const frontend::SupportedLoss& loss : frontend::supportedLosses())
    text += cat(text.empty() ? "" : "; ", loss.syntax);
  return text +
         ". VECTOR is the name of a constant tensor of the model (an initializer) or a .npy file. A loss function adds "
         "an input to the model, named `labels` for cross_entropy and `targets` for the others. The argument "
         "target=NAME gives it another name, as in mse(PREDICTION, target=NAME).";
}

Expected<frontend::KnownInput> parseKnownInput(const std::string& text) {
  size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) return Status::error("expected INPUT=FILE.npy");
  Expected<MappedFile> file = MappedFile::open(text.substr(equals + 1));
  if (!file.ok()) return file.status();
  Expected<io::NpyArray> array = io::parseNpy(file->bytes());
  if (!array.ok()) return array.status();
  frontend::KnownInput known{text.substr(0, equals), array->shape, {}};
  int64_t count = 1;
  for (int64_t size : array->shape) count *= size;
  if (count > int64_t{1} << 20) return Status::error("more than 2^20 elements do not decide shapes");
  if (!io::convertible(array->type, io::DataType::I64))
    return Status::error(cat("the array is of ", io::nameOf(array->type), ", not of integers or booleans"));
  known.values.resize(static_cast<size_t>(count));
  SHEAF_RETURN_IF_ERROR(io::convert(array->type, array->data.data(), io::DataType::I64,
                                    reinterpret_cast<std::byte*>(known.values.data()), known.values.size()));
  return known;
}

std::unique_ptr<mlir::MLIRContext> makeContext() {
  mlir::DialectRegistry registry;
  registry.insert<mlir::func::FuncDialect, train::TrainDialect, zero::ZeroDialect>();
  auto context = std::make_unique<mlir::MLIRContext>(registry);
  context->loadAllAvailableDialects();
  return context;
}

// Tells the evaluation what memory holds of the parameters that it shares with the training step.
static void shareTypes(mlir::ModuleOp training, mlir::ModuleOp evaluation) {
  mlir::SymbolTable symbols(training);
  for (auto parameter : evaluation.getOps<train::ParameterOp>())
    if (auto known = symbols.lookup<train::ParameterOp>(parameter.getSymName()))
      parameter->setDiscardableAttr(
          train::kHeldTypeAttr,
          mlir::TypeAttr::get(mlir::cast<mlir::RankedTensorType>(known.getType()).getElementType()));
}

// The graph's evaluation, up to the same phase. `training` is the module of the step, if the plan has one.
static mlir::OwningOpRef<mlir::ModuleOp> importEvaluation(mlir::MLIRContext& context, const TrainedOptions& options,
                                                          bool importOnly, mlir::ModuleOp training) {
  frontend::ImportOptions import = options.import;
  // A batch of the evaluation has the rows of a micro-batch.
  import.batch /= import.microBatches;
  import.leaves /= import.microBatches;
  import.microBatches = 1;
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
  if (training && !importOnly) shareTypes(training, *module);
  if (!importOnly) addEvaluationPasses(passes, options.pipeline);
  if (mlir::failed(passes.run(*module))) return {};
  becomeEvaluation(*module);
  return module;
}

// Warns of tensors that are trained and may be buffers.
static void warnOfPossibleBuffers(mlir::ModuleOp module) {
  for (auto decision : module->getAttrOfType<mlir::ArrayAttr>("train.decisions").getAsRange<mlir::StringAttr>())
    if (llvm::StringRef text = decision.getValue(); text.consume_front(kPossibleBuffers))
      mlir::emitWarning(module.getLoc()) << text;
}

mlir::OwningOpRef<mlir::ModuleOp> importModel(mlir::MLIRContext& context, const TrainedOptions& options,
                                              bool importOnly) {
  if (options.evaluationOnly) return importEvaluation(context, options, importOnly, {});
  mlir::OwningOpRef<mlir::ModuleOp> module = frontend::importOnnx(context, options.model, options.import);
  if (!module) return {};
  warnOfPossibleBuffers(*module);
  mlir::PassManager passes(&context);
  addImportPasses(passes);
  if (!importOnly) addTrainPasses(passes, options.pipeline);
  if (mlir::failed(passes.run(*module))) return {};
  if (!importOnly) setTraining(*module, options);
  if (!options.evaluation) return module;
  mlir::OwningOpRef<mlir::ModuleOp> evaluation = importEvaluation(context, options, importOnly, *module);
  if (!evaluation || mlir::failed(attachEvaluation(*module, *evaluation))) return {};
  return module;
}

}  // namespace sheaf::tool
