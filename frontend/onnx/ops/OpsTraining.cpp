// Operators that do something else in training than in evaluation: batch normalization and dropout.
#include "frontend/onnx/importer/Importer.h"
#include "ir/Train/BatchNorm.h"
#include "llvm/Support/Format.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Mode = ImportOptions::BatchNorm;

bool isTrainable(train::ParameterOp parameter) {
  return parameter && parameter.getTrainable();
}

// Whether a BatchNormalization was exported in training mode; nothing if the graph does not say. PyTorch's dynamo
// exporter never writes training_mode, but its metadata has the operator that it exported, with its arguments.
std::optional<bool> statedTraining(Node& n) {
  bool asksForMoments = llvm::any_of(llvm::seq<int64_t>(1, n.outputs()), [&](int64_t i) { return n.uses(i); });
  if (n.opset >= 14 ? n.integer("training_mode", 0) != 0 : asksForMoments) return true;
  StringRef call = Model::metadata(n.proto.metadata_props(), "pkg.torch.onnx.fx_node");
  if (call.contains("batch_norm_legit_no_training")) return false;
  if (call.contains("batch_norm")) {
    size_t yes = call.find(", True"), no = call.find(", False");
    if (yes != no) return yes < no;
  }
  if (n.has("training_mode")) return false;
  return std::nullopt;
}

Mode modeOf(Node& n) {
  Importer& importer = n.importer;
  if (importer.evaluates()) return Mode::eval;
  if (importer.options.batchNorm != Mode::automatic) return importer.options.batchNorm;
  std::optional<bool> training = statedTraining(n);
  if (training == true) return Mode::sync;
  train::ParameterOp scale = importer.parameterOf(n.input(1)), bias = importer.parameterOf(n.input(2));
  // Without affine parameters, scale and bias are constants of the exporter.
  bool plain = !scale && !bias && importer.parameterOf(n.input(3)) && importer.parameterOf(n.input(4));
  if (!isTrainable(scale) && !isTrainable(bias) && !plain) return Mode::eval;
  if (!importer.warnedBatchNorm) {
    auto warning = emitWarning(n.emit.location());
    if (training)
      warning
          << "BatchNormalization was exported in evaluation mode: it normalizes by the stored statistics, which stay "
             "as they are, as PyTorch does after model.eval(). Give --batch-norm sync to normalize by the batch, or "
             "--batch-norm eval to agree; to export training mode, call model.train() first (with dynamo=False, give "
             "training=torch.onnx.TrainingMode.TRAINING)";
    else
      warning
          << "BatchNormalization does not say whether it is in training mode, and its scale is trained: it "
             "normalizes by the batch of all ranks, as PyTorch does after model.train(). Give --batch-norm sync to "
             "agree, or --batch-norm eval to normalize by the stored statistics; exports with PyTorch's metadata or "
             "with dynamo=False, training=torch.onnx.TrainingMode.TRAINING say which is meant";
    importer.warnedBatchNorm = true;
  }
  return training ? Mode::eval : Mode::sync;
}

// A vector of one element a channel, to be combined with [N, C, ...].
Tensor perChannel(Emitter& e, const Tensor& vector, const Tensor& x) {
  Shape shape(x.rank(), 1);
  shape[1] = x.dim(1);
  return e.reshape(e.cast(vector, x.elementType()), shape);
}

// Evaluation: (x - mean) / sqrt(variance + epsilon) * scale + bias by the stored statistics.
Tensor normalizeByStatistics(Node& n, const Tensor& narrow, double epsilon) {
  Emitter& e = n.emit;
  const Tensor x = e.atLeastF32(narrow);  // an epsilon may be 0 in f16
  auto vector = [&](int64_t i) { return perChannel(e, n.input(i), x); };
  Tensor deviation = e.unary<train::RsqrtOp>(e.scalar<train::AddOp>(vector(4), epsilon));
  Tensor centred = e.binary<train::SubOp>(x, vector(3));
  Tensor scaled = e.binary<train::MulOp>(centred, e.binary<train::MulOp>(vector(1), deviation));
  return e.cast(e.binary<train::AddOp>(scaled, vector(2)), narrow.elementType());
}

// A running statistic after the step, as the graph sees it.
Tensor moved(Emitter& e, const Tensor& old, const Tensor& moment, double momentum) {
  return e.binary<train::AddOp>(e.scalar<train::MulOp>(old, momentum), e.scalar<train::MulOp>(moment, 1 - momentum));
}

// Training: the moments of the batch normalize it and move the running statistics.
LogicalResult normalizeByBatch(Node& n, const Tensor& x, double epsilon, bool local) {
  Emitter& e = n.emit;
  Importer& importer = n.importer;
  if (importer.takesOneRow())
    return n.error()
           << "takes moments of the batch, in a graph that is fixed to one row of it: export the model with a "
              "dynamic batch, or give --batch-norm eval";
  const int64_t leaves = importer.leaves();
  const int64_t elements = x.count() / x.dim(1), own = elements / (local ? leaves : 1);
  if (own < 2)
    return n.error() << "has " << own << " element a channel" << (local ? " on a rank" : "")
                     << ", whose variance is 0: give a larger --batch, or --batch-norm eval";
  if (local && leaves > 1 && !importer.warnedLocal) {
    emitWarning(e.location()) << "--batch-norm local: every rank normalizes by its own rows, so results depend on the "
                                 "number of ranks";
    importer.warnedLocal = true;
  }
  OpBuilder& b = e.ops();
  auto op =
      train::BatchNormOp::create(b, e.location(), e.materialize(x), e.materialize(e.cast(n.input(1), x.elementType())),
                                 e.materialize(e.cast(n.input(2), x.elementType())), b.getF64FloatAttr(epsilon),
                                 b.getI64IntegerAttr(1), local ? b.getUnitAttr() : UnitAttr());
  if (failed(n.set(0, e.reshape(Value(op.getResult()), n.input(0).shape())))) return failure();

  const double momentum = n.number("momentum", 0.9f);
  Tensor mean = e.cast(Value(op.getMean()), n.input(3).elementType());
  Tensor variance = e.cast(Value(op.getVariance()), n.input(4).elementType());
  if (n.uses(1) && failed(n.set(1, moved(e, n.input(3), mean, momentum)))) return failure();
  if (n.uses(2) && failed(n.set(2, moved(e, n.input(4), variance, momentum)))) return failure();
  if (n.uses(3) && failed(n.set(3, mean))) return failure();
  if (n.uses(4) && failed(n.set(4, variance))) return failure();

  // ONNX moves the population variance into the running one, PyTorch the unbiased estimate, and a model of PyTorch's
  // is to end with PyTorch's statistics. If leaves have moments of their own, -train-partition corrects the factor.
  const bool unbiased = importer.model.proto().producer_name() == "pytorch";
  if (unbiased) {
    Tensor estimate = e.scalar<train::MulOp>(Tensor(op.getVariance()), double(elements) / double(elements - 1));
    estimate.value().getDefiningOp()->setDiscardableAttr("train.unbiased", b.getUnitAttr());
    variance = e.cast(estimate, n.input(4).elementType());
  }
  for (auto [input, moment] : {std::pair(3, mean), {4, variance}}) {
    if (auto parameter = importer.parameterOf(n.input(input)))
      importer.statistics.push_back({parameter, moment, momentum, unbiased && input == 4});
    else
      emitWarning(e.location()) << "the running statistics '" << n.proto.input(input)
                                << "' are not an initializer of the graph: they are not updated";
  }
  return success();
}

LogicalResult batchNormalization(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  if (x.rank() < 1 || !x.isFloat()) return n.error() << "takes floating-point numbers [N, C, ...]";
  if (x.rank() == 1) x = e.reshape(x, {x.dim(0), 1});  // one channel
  if (x.count() == 0) return n.error() << "takes at least one element";
  for (int64_t i = 1; i <= 4; ++i)
    if (n.input(i).rank() != 1 || n.input(i).dim(0) != x.dim(1) || !n.input(i).isFloat())
      return n.error() << "takes " << x.dim(1) << " floating-point numbers, one a channel, as input " << i;
  if (n.opset < 9 && n.integer("spatial", 1) == 0)
    return n.error() << "spatial = 0, with moments of every position, is not supported";
  for (int64_t i : {3, 4})
    if (auto parameter = n.importer.parameterOf(n.input(i))) {
      if (parameter == n.importer.parameterOf(n.input(1)) || parameter == n.importer.parameterOf(n.input(2)))
        return n.error() << "'" << parameter.getSymName() << "' is a running statistic and its scale or bias at once: "
                         << "an exporter merged tensors of equal value. Export with optimize=False";
      parameter.setTrainable(false);
      parameter->setDiscardableAttr(train::kStatisticsAttr, e.ops().getUnitAttr());
      parameter->setDiscardableAttr("train.reason", e.ops().getStringAttr("running statistics"));
    }
  const double epsilon = n.number("epsilon", 1e-5f);
  const Mode mode = modeOf(n);
  if (mode != Mode::eval) return normalizeByBatch(n, x, epsilon, mode == Mode::local);
  if (failed(n.set(0, e.reshape(normalizeByStatistics(n, x, epsilon), n.input(0).shape())))) return failure();
  for (int64_t i = 1; i <= 4; ++i)
    if (n.uses(i) && failed(n.set(i, n.input(i <= 2 ? i + 2 : i)))) return failure();
  return success();
}

// The mask, as a result: true where an element is kept. Until opset 9 it has the type of the data.
LogicalResult setMask(Node& n, const Tensor& kept) {
  return n.set(1, n.opset < 10 ? n.emit.cast(kept, n.input(0).elementType()) : kept);
}

// A mask that keeps all of x, computed from x, so that it has its rows of the batch.
Tensor allKept(Emitter& e, const Tensor& x) {
  using Predicate = train::ComparePredicate;
  return e.binary<train::OrOp>(e.compare(Predicate::eq, x, x), e.compare(Predicate::ne, x, x));
}

// Returns whether a Dropout without training_mode drops. So PyTorch exports that of scaled_dot_product_attention, which
// drops whenever it is given a probability: it follows the model's other Dropouts. By the specification of ONNX, and in
// other models, nothing is dropped.
bool dropsUnstated(Node& n) {
  if (n.importer.statedDropout) return *n.importer.statedDropout;
  return n.opset >= 12 && n.importer.model.proto().producer_name() == "pytorch";
}

LogicalResult dropout(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  double ratio = n.number("ratio", 0.5);
  bool training = false;
  if (n.opset >= 12) {
    for (int64_t i : {1, 2})
      if (n.input(i) && (!n.input(i).constant() || n.input(i).count() != 1))
        return n.error() << "ratio and training_mode must be known when the graph is compiled: make them constants";
    if (n.input(1)) ratio = n.input(1).constant()->splatValue();
    training = n.input(2) ? n.input(2).constant()->splatValue() != 0 : n.input(1) && dropsUnstated(n);
  }
  if (!(ratio >= 0 && ratio < 1))
    return n.error() << "a ratio of " << ratio << " is out of range; it takes 0 to below 1";
  if (ratio == 0 || !training || n.importer.evaluates()) {
    if (ratio != 0 && !n.importer.evaluates())
      n.importer.idleDropouts.push_back(n.proto.name().empty() ? n.proto.output(0) : n.proto.name());
    if (n.uses(1) && failed(setMask(n, allKept(e, x)))) return failure();
    return n.set(0, x);
  }
  if (!x.isFloat()) return n.error() << "takes floating-point numbers";
  const int64_t node = n.importer.dropouts++;
  auto drop = [&](const Tensor& from) -> Tensor {
    Value v = e.materialize(from);
    return Value(train::DropoutOp::create(e.ops(), e.location(), v.getType(), v, e.ops().getF64FloatAttr(ratio),
                                          e.ops().getI64IntegerAttr(node)));
  };
  if (n.uses(1)) {
    // The same node draws the same mask.
    Tensor ones = drop(e.cast(allKept(e, x), x.elementType()));
    if (failed(setMask(n, e.compare(train::ComparePredicate::gt, ones, e.splatLike(ones, 0))))) return failure();
  }
  return n.set(0, drop(x));
}

constexpr Operator kOperators[] = {
    {"BatchNormalization",
     7,
     0,
     5,
     batchNormalization,
     {.sample = "f[2,3,4], f[3], f[3], f[3], f[3]; training_mode=1",
      .noGradient = {"test_batchnorm_.*training_mode",
                     "the running statistics that it gives out have none, as in PyTorch"}}},
    {"Dropout",
     7,
     0,
     1,
     dropout,
     {.sample = "f[2,3], 0.5, true",
      .limits = "ratio and training_mode known when the graph is compiled",
      .leftOut = {"test_training_dropout(?!_zero_ratio).*", "random numbers, which are not numpy's"}}},
};

}  // namespace

ArrayRef<Operator> modeOperators() {
  return kOperators;
}

std::optional<bool> statedDropoutMode(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  llvm::StringMap<const onnx::TensorProto*> known;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) known[tensor.name()] = &tensor;
  std::optional<bool> training;
  auto look = [&](const onnx::NodeProto& node) {
    if (node.op_type() == "Constant" && node.output_size())
      for (const onnx::AttributeProto& attribute : node.attribute())
        if (attribute.has_t()) known[node.output(0)] = &attribute.t();
    if (node.op_type() != "Dropout" || node.input_size() < 3) return;
    const onnx::TensorProto* mode = known.lookup(node.input(2));
    if (!mode) return;
    const StringRef raw = model.rawBytes(*mode);
    const bool on = raw.empty() ? mode->int32_data_size() && mode->int32_data(0) : raw[0] != 0;
    training = training.value_or(false) || on;
  };
  for (const onnx::NodeProto* node : nodes) look(*node);
  for (const onnx::FunctionProto& function : model.proto().functions())
    for (const onnx::NodeProto& node : function.node()) look(node);
  return training;
}

// Nothing is dropped without training_mode, which is seldom what a training graph means.
void warnOfIdleDropouts(const Importer& importer) {
  const std::vector<std::string>& nodes = importer.idleDropouts;
  if (nodes.empty()) return;
  emitWarning(importer.model.location())
      << "dropout was exported in inference form (no training_mode): " << nodes.size()
      << (nodes.size() == 1 ? " node drops nothing (" : " nodes drop nothing (") << listNames(nodes)
      << "). Export the model in training mode, with opset 12 or later, to train with dropout: model.train() before "
         "torch.onnx.export, and with dynamo=False also training=torch.onnx.TrainingMode.TRAINING";
}

// A parameter whose batch norm is used more than once is moved by every use in turn. With momentums m, ..., that is one
// move with their product as the momentum, by a weighted mean of the moments.
void emitStatistics(Importer& importer, func::FuncOp step) {
  Emitter& e = importer.emit;
  llvm::MapVector<Operation*, std::vector<const RunningStatistic*>> uses;
  for (const RunningStatistic& s : importer.statistics) uses[s.parameter].push_back(&s);
  llvm::StringMap<train::OptimizerOp> rules;  // by momentum
  for (auto& [operation, moments] : uses) {
    auto parameter = cast<train::ParameterOp>(operation);
    double kept = 1;  // of the old statistic
    for (const RunningStatistic* s : moments) kept *= s->momentum;
    if (kept == 1) continue;
    Tensor moment;
    double later = 1;
    for (const RunningStatistic* s : llvm::reverse(moments)) {
      double weight = (1 - s->momentum) * later / (1 - kept);
      Tensor term = moments.size() == 1 ? s->moment : e.scalar<train::MulOp>(s->moment, weight);
      moment = moment ? e.binary<train::AddOp>(moment, term) : term;
      later *= s->momentum;
    }
    std::string text;
    llvm::raw_string_ostream(text) << llvm::format("%.6g", kept);
    train::OptimizerOp& rule = rules[text];
    if (!rule) {
      OpBuilder::InsertionGuard guard(importer.builder);
      importer.builder.setInsertionPoint(step);
      std::string name = "running_statistics" + (rules.size() > 1 ? std::to_string(rules.size() - 1) : "");
      rule = train::declareStatisticsRule(importer.builder, parameter.getLoc(), name, kept);
    }
    auto update = train::UpdateOp::create(importer.builder, parameter.getLoc(),
                                          FlatSymbolRefAttr::get(parameter.getSymNameAttr()),
                                          FlatSymbolRefAttr::get(rule.getSymNameAttr()), e.materialize(moment));
    update->setDiscardableAttr(train::kStatisticsAttr, importer.builder.getUnitAttr());
    importer.decide(parameter.getSymName() + ": running statistics, updated with momentum " + text +
                    (moments.front()->unbiased ? " by PyTorch's unbiased variance" : ""));
  }
}

}  // namespace sheaf::frontend
