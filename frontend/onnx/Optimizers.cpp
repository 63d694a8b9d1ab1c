// The updates of a model's own training algorithm as `train.optimizer` symbols.
#include "frontend/onnx/Importer.h"
#include "frontend/onnx/TrainingInfo.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Deeper chains of operators are not an update rule.
constexpr int kMaxDepth = 200;

bool isElementwise(StringRef op) {
  if (op == "Constant" || op == "Identity" || op == "Cast" || op == "CastLike") return true;
  return llvm::any_of(elementwiseOperators(), [&](const Operator& o) { return o.name == op; });
}

// Builds the update of one parameter in the region of an optimizer. All values are scalars: one element of each tensor.
class Update {
 public:
  Update(Importer& importer, const TrainingForm& form, train::ParameterOp parameter, StringRef variable)
      : importer(importer),
        form(form),
        emit(importer.emit),
        parameter(parameter),
        variable(variable),
        f32(importer.builder.getF32Type()),
        scalarType(RankedTensorType::get({}, f32)) {}

  // The finished op, outside any module; null after an error.
  OwningOpRef<train::OptimizerOp> build();

 private:
  Tensor value(StringRef name, int depth);
  Tensor leaf(StringRef name, const onnx::TensorProto& tensor);
  Tensor state(StringRef name, const onnx::TensorProto& tensor);
  Tensor counter(StringRef name);
  FailureOr<int64_t> counterStart(StringRef name);
  Tensor optimizerOutput(const onnx::NodeProto& node, StringRef output, int depth);
  Tensor biasCorrection(StringRef counterName, double rate, bool root);
  Value scalar(train::ScalarKind kind, double v);
  LogicalResult constantsToScalars();
  InFlightDiagnostic error() {
    return emitError(parameter.getLoc()) << "training_info: the update of '" << variable << "': ";
  }
  Tensor constant(double v) { return emit.splat(f32, {}, v); }
  Tensor mul(const Tensor& x, const Tensor& y) { return emit.binary<train::MulOp>(x, y); }
  Tensor add(const Tensor& x, const Tensor& y) { return emit.binary<train::AddOp>(x, y); }
  Tensor sub(const Tensor& x, const Tensor& y) { return emit.binary<train::SubOp>(x, y); }

  Importer& importer;
  const TrainingForm& form;
  Emitter& emit;
  train::ParameterOp parameter;
  std::string variable;
  Type f32;
  RankedTensorType scalarType;
  Block* block = nullptr;
  Scope scope;
  std::vector<std::pair<std::string, std::string>> states;    // initializer, name in the optimizer
  std::vector<std::pair<train::ScalarKind, double>> scalars;  // kind, value
};

Value Update::scalar(train::ScalarKind kind, double v) {
  for (auto [i, known] : llvm::enumerate(scalars))
    if (known.first == kind && known.second == v) return block->getArgument(2 + states.size() + i);
  scalars.emplace_back(kind, v);
  return block->addArgument(scalarType, parameter.getLoc());
}

Tensor Update::state(StringRef name, const onnx::TensorProto& tensor) {
  auto shape = cast<RankedTensorType>(parameter.getType()).getShape();
  if (ArrayRef<int64_t>(tensor.dims().data(), tensor.dims().size()) != shape)
    return error() << "the state '" << name << "' has another shape than the parameter", Tensor();
  Tensor start = constantTensor(emit, importer.model, tensor);
  if (!start) return {};
  if (!start.constant()->isSplat() || start.constant()->splatValue() != 0)
    return error() << "the state '" << name << "' does not start at zero, which is not supported", Tensor();
  // "w.momentum" of the parameter "w" is the state "momentum".
  StringRef shortName = name;
  if (shortName.consume_front(variable) || shortName.consume_back(variable)) shortName = shortName.trim("._:/");
  bool plain = !shortName.empty() && shortName.find_first_of("./:") == StringRef::npos && shortName != name;
  std::string own = plain ? shortName.str() : "state" + std::to_string(states.size());
  Value argument = block->insertArgument(2 + states.size(), scalarType, parameter.getLoc());
  states.emplace_back(name, own);
  return argument;
}

// Where a counter starts, having checked that every step adds one to it.
FailureOr<int64_t> Update::counterStart(StringRef name) {
  const onnx::TensorProto* tensor = importer.initializer(name);
  Tensor start = tensor ? constantTensor(emit, importer.model, *tensor) : Tensor();
  if (!start) return failure();
  const onnx::NodeProto* next = form.producer(form.binding(name));
  bool counts = next && next->op_type() == "Add" && next->input_size() == 2;
  if (counts) {
    StringRef other = next->input(0) == name ? next->input(1) : next->input(0);
    counts = next->input(0) == name || next->input(1) == name;
    Tensor one;
    if (const onnx::TensorProto* by = counts ? importer.initializer(other) : nullptr)
      one = constantTensor(emit, importer.model, *by);
    else if (const onnx::NodeProto* by = form.producer(other);
             counts && by && by->op_type() == "Constant" && by->attribute_size() == 1 && by->attribute(0).has_t())
      one = constantTensor(emit, importer.model, by->attribute(0).t());
    counts = one && one.count() == 1 && one.constant()->splatValue() == 1;
  }
  if (!counts)
    return error() << "'" << name
                   << "' is updated, but is neither a state of the parameter's shape nor a counter that adds 1",
           failure();
  return int64_t(start.constant()->splatValue());
}

// A counter's value in update t, counted from 1, is its start + t - 1.
Tensor Update::counter(StringRef name) {
  auto start = counterStart(name);
  if (failed(start)) return {};
  Tensor t = scalar(train::ScalarKind::step, 0);
  if (*start != 1) t = add(t, constant(double(*start - 1)));
  return emit.cast(t, elementType(emit.context(), importer.initializer(name)->data_type()));
}

Tensor Update::leaf(StringRef name, const onnx::TensorProto& tensor) {
  if (llvm::is_contained(form.variables(), name))
    return error() << "uses another parameter, '" << name << "'", Tensor();
  auto count = elementCount(ArrayRef<int64_t>(tensor.dims().data(), tensor.dims().size()));
  bool scalarShape = count && *count == 1;
  if (!form.binding(name).empty()) {
    bool whole = ArrayRef<int64_t>(tensor.dims().data(), tensor.dims().size()) ==
                 cast<RankedTensorType>(parameter.getType()).getShape();
    return whole ? state(name, tensor) : counter(name);
  }
  if (!scalarShape)
    return error() << "uses the tensor '" << name
                   << "'; an update may use scalars and states of the parameter's shape only",
           Tensor();
  return emit.reshape(constantTensor(emit, importer.model, tensor), {});
}

Tensor Update::value(StringRef name, int depth) {
  if (auto it = scope.values.find(name); it != scope.values.end()) return it->second.tensor;
  if (depth > kMaxDepth) return error() << "is nested too deeply, or has a cycle", Tensor();
  Tensor result;
  if (StringRef of = form.gradientOf(name); !of.empty()) {
    return error() << "uses the gradient of another parameter, '" << of << "'", Tensor();
  } else if (const onnx::TensorProto* tensor = importer.initializer(name)) {
    result = leaf(name, *tensor);
  } else if (const onnx::NodeProto* node = form.producer(name)) {
    StringRef domain = node->domain();
    if (domain.ends_with("training")) {
      result = optimizerOutput(*node, name, depth);
    } else {
      if ((domain.empty() || domain == "ai.onnx") && !isElementwise(node->op_type()))
        return error() << "operator " << node->op_type() << " is not elementwise", Tensor();
      for (const std::string& input : node->input())
        if (!input.empty() && !value(input, depth + 1)) return {};
      if (failed(importer.importNode(*node, scope, 0))) return {};
      auto it = scope.values.find(name);
      return it == scope.values.end() ? Tensor() : it->second.tensor;
    }
  } else {
    return error() << "uses '" << name << "', which the training algorithm does not define", Tensor();
  }
  if (result) scope.values[name] = GraphValue{result, std::nullopt};
  return result;
}

// 1 - rate^T, or its square root, for the counter's value T. It is a step scalar of the update's number t, which is T
// where the counter starts at 1. Where it starts at 0, 1 - rate^(t-1) = ((1 - rate^t) - (1 - rate)) / rate.
Tensor Update::biasCorrection(StringRef counterName, double rate, bool root) {
  Tensor correction;
  if (form.binding(counterName).empty()) {
    Tensor t = value(counterName, 0);
    if (!t || !t.constant()) return {};
    correction = constant(1 - std::pow(rate, t.constant()->splatValue()));
  } else {
    auto start = counterStart(counterName);
    if (failed(start)) return {};
    if (*start == 1)
      return Tensor(scalar(root ? train::ScalarKind::sqrt_bias_correction : train::ScalarKind::bias_correction, rate));
    correction = emit.binary<train::DivOp>(
        sub(Value(scalar(train::ScalarKind::bias_correction, rate)), constant(1 - rate)), constant(rate));
  }
  return root ? emit.unary<train::SqrtOp>(correction) : correction;
}

// Adagrad, Adam and Momentum of ai.onnx.preview.training version 1, by their specification.
Tensor Update::optimizerOutput(const onnx::NodeProto& node, StringRef output, int depth) {
  StringRef op = node.op_type();
  int perVariable = op == "Adam" ? 4 : op == "Adagrad" || op == "Momentum" ? 3 : 0;
  if (!perVariable) return error() << "operator " << node.domain() << "." << op << " is not supported", Tensor();
  int variables = (node.input_size() - 2) / perVariable, index = 0;
  if (variables < 1 || node.input_size() != 2 + variables * perVariable ||
      node.output_size() != variables * (perVariable - 1))
    return error() << op << " has the wrong number of inputs or outputs", Tensor();
  while (node.output(index) != output) ++index;
  int which = index % variables, kind = index / variables;
  auto number = [&](StringRef name, double otherwise) {
    for (const onnx::AttributeProto& attribute : node.attribute())
      if (attribute.name() == name) return double(attribute.f());
    return otherwise;
  };
  auto input = [&](int group) { return value(node.input(2 + group * variables + which), depth + 1); };
  std::string counterName = node.input(1);
  Tensor rate = value(node.input(0), depth + 1), x = input(0), g = input(1);
  if (!rate || !x || !g) return {};
  bool fixed = form.binding(counterName).empty();  // T is a constant
  int64_t start = 1;
  if (!fixed) {
    auto found = counterStart(counterName);
    if (failed(found)) return {};
    start = *found;
    if (start != 0 && start != 1)
      return error() << "the counter '" << counterName << "' must start at 0 or 1", Tensor();
  } else {
    Tensor t = value(counterName, depth + 1);
    if (!t || !t.constant()) return {};
    start = t.constant()->splatValue() > 0 ? 1 : 0;
  }
  // T > 0 is false in the first update of a counter from 0, or always for a constant 0.
  auto whenPositive = [&](const Tensor& then, const Tensor& otherwise) {
    if (start > 0) return then;
    if (fixed) return otherwise;
    Tensor first =
        emit.compare(train::ComparePredicate::gt, Value(scalar(train::ScalarKind::first_step, 0)), constant(0.5));
    return emit.select(first, otherwise, then);
  };
  double decay = number("norm_coefficient", 0);
  if (decay != 0) g = add(mul(constant(decay), x), g);

  if (op == "Momentum") {
    double alpha = number("alpha", 0), beta = number("beta", 0);
    Tensor adjusted = whenPositive(constant(beta), constant(1));
    Tensor v = add(mul(constant(alpha), input(2)), mul(adjusted, g));
    if (kind == 1) return v;
    auto isMode = [](const onnx::AttributeProto& a) { return a.name() == "mode" && a.s() == "nesterov"; };
    Tensor step = llvm::any_of(node.attribute(), isMode) ? add(g, mul(constant(alpha), v)) : v;
    return sub(x, mul(rate, step));
  }
  double epsilon = number("epsilon", 1e-6f);
  if (op == "Adagrad") {
    Tensor h = add(input(2), mul(g, g));
    if (kind == 1) return h;
    double decayFactor = number("decay_factor", 0);
    if (decayFactor != 0) {
      Tensor t = emit.cast(value(counterName, depth + 1), f32);
      rate = emit.binary<train::DivOp>(rate, add(constant(1), mul(t, constant(decayFactor))));
    }
    Tensor root = add(emit.unary<train::SqrtOp>(h), constant(epsilon));
    return sub(x, emit.binary<train::DivOp>(mul(rate, g), root));
  }
  double alpha = number("alpha", 0.9f), beta = number("beta", 0.999f), post = number("norm_coefficient_post", 0);
  Tensor v = add(mul(constant(alpha), input(2)), mul(constant(1 - alpha), g));
  if (kind == 1) return v;
  Tensor h = add(mul(constant(beta), input(3)), mul(constant(1 - beta), mul(g, g)));
  if (kind == 2) return h;
  Tensor corrected = rate;
  if (start > 0 || !fixed) {
    Tensor second = biasCorrection(counterName, beta, true), first = biasCorrection(counterName, alpha, false);
    corrected = whenPositive(emit.binary<train::DivOp>(mul(rate, second), first), rate);
  }
  Tensor root = add(emit.unary<train::SqrtOp>(h), constant(epsilon));
  Tensor updated = sub(x, emit.binary<train::DivOp>(mul(corrected, v), root));
  return post != 0 ? mul(constant(1 - post), updated) : updated;
}

// Constants become step scalars: a constant op would be hoisted out of the region by the canonicalizer.
LogicalResult Update::constantsToScalars() {
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(*block))) {
    // An integer counter that is only converted back to f32 was never an integer.
    if (auto cast = dyn_cast<train::CastOp>(op))
      if (auto inner = cast.getOperand().getDefiningOp<train::CastOp>();
          inner && inner.getOperand().getType() == cast.getType())
        cast.getResult().replaceAllUsesWith(inner.getOperand());
    if (op.use_empty() && !isa<train::YieldOp>(op)) op.erase();
  }
  for (Operation& op : llvm::make_early_inc_range(*block)) {
    if (auto constant = dyn_cast<train::ConstantOp>(op)) {
      auto data = dyn_cast<DenseElementsAttr>(constant.getValue());
      if (data && data.isSplat() && constant.getType() == scalarType) {
        constant.getResult().replaceAllUsesWith(
            scalar(train::ScalarKind::constant, data.getSplatValue<APFloat>().convertToDouble()));
        constant.erase();
        continue;
      }
    }
    for (Type type : op.getResultTypes()) {
      auto tensor = cast<RankedTensorType>(type);
      if (tensor.getRank() != 0 || !(tensor.getElementType().isF32() || tensor.getElementType().isInteger(1)))
        return error() << "computes " << type << " where one f32 per element is supported";
    }
  }
  return success();
}

OwningOpRef<train::OptimizerOp> Update::build() {
  if (cast<RankedTensorType>(parameter.getType()).getElementType() != f32)
    return error() << "only parameters of type FLOAT are supported", nullptr;
  OpBuilder::InsertionGuard guard(importer.builder);
  OperationState operation(parameter.getLoc(), train::OptimizerOp::getOperationName());
  operation.addRegion();
  operation.addAttribute("sym_name", importer.builder.getStringAttr("optimizer"));
  operation.addAttribute("states", importer.builder.getArrayAttr({}));
  operation.addAttribute("scalars", importer.builder.getArrayAttr({}));
  OwningOpRef<train::OptimizerOp> op = cast<train::OptimizerOp>(Operation::create(operation));
  block = &op->getBody().emplaceBlock();
  importer.builder.setInsertionPointToEnd(block);
  emit.forget();
  emit.enter(parameter.getLoc(), ("training_info: the update of '" + variable + "'"));
  scope.values[variable] = GraphValue{Tensor(block->addArgument(scalarType, parameter.getLoc())), std::nullopt};
  Value gradient = block->addArgument(scalarType, parameter.getLoc());
  for (const onnx::NodeProto& node : form.algorithm().node())
    for (const std::string& output : node.output())
      if (form.gradientOf(output) == variable) scope.values[output] = GraphValue{Tensor(gradient), std::nullopt};

  SmallVector<Value> results;
  Tensor updated = value(form.binding(variable), 0);
  if (!updated) return nullptr;
  results.push_back(emit.materialize(updated));
  // The next value of a state may use another state: the list grows.
  for (size_t i = 0; i < states.size(); ++i) {
    Tensor next = value(form.binding(states[i].first), 0);
    if (!next) return nullptr;
    results.push_back(emit.materialize(next));
  }
  OperationState yield(parameter.getLoc(), train::YieldOp::getOperationName());
  yield.addOperands(results);
  importer.builder.create(yield);
  if (failed(constantsToScalars())) return nullptr;

  Builder& b = importer.builder;
  SmallVector<StringRef> names;
  for (auto& entry : states) names.push_back(entry.second);
  SmallVector<Attribute> kinds;
  for (auto& [kind, v] : scalars) kinds.push_back(train::ScalarAttr::get(b.getContext(), kind, v));
  op->setStatesAttr(b.getStrArrayAttr(names));
  op->setScalarsAttr(b.getArrayAttr(kinds));
  return op;
}

}  // namespace

LogicalResult emitOptimizers(Importer& importer, const TrainingForm& form, ModuleOp module) {
  llvm::StringMap<StringAttr> known;  // the text of an optimizer to its name
  OpBuilder::InsertionGuard guard(importer.builder);
  for (auto parameter : llvm::make_early_inc_range(module.getOps<train::ParameterOp>())) {
    if (!parameter.getTrainable()) continue;
    StringRef variable = parameter.getSymName();
    if (!llvm::is_contained(form.variables(), variable))
      return emitError(parameter.getLoc()) << "training_info: '" << variable
                                           << "' was folded or merged by the exporter; "
                                              "give --loss and --optimizer to train the graph alone";
    OwningOpRef<train::OptimizerOp> op = Update(importer, form, parameter, variable).build();
    if (!op) return failure();
    std::string text;
    llvm::raw_string_ostream stream(text);
    op->print(stream);
    auto [it, fresh] = known.try_emplace(text);
    if (fresh) {
      std::string name = "optimizer" + (known.size() > 1 ? std::to_string(known.size() - 1) : "");
      while (SymbolTable::lookupSymbolIn(module, name)) name += "_";
      op->setSymName(name);
      it->second = importer.builder.getStringAttr(name);
      module.getBody()->getOperations().insert(Block::iterator(parameter), op.release());
    }
    parameter->setDiscardableAttr("train.optimizer", FlatSymbolRefAttr::get(it->second));
  }
  return success();
}

}  // namespace sheaf::frontend
