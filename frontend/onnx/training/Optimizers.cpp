// The updates of a model's own training algorithm as `train.optimizer` symbols.
#include <cmath>

#include "frontend/onnx/training/OptimizerRules.h"
#include "frontend/onnx/training/TrainingInfo.h"
#include "ir/Train/ParameterNames.h"

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

  // The finished op, outside any module; null after an error. `followers` are other initializers that are updated with
  // the parameter, such as its moving average.
  OwningOpRef<train::OptimizerOp> build(ArrayRef<std::string> followers);

 private:
  Tensor value(StringRef name, int depth);
  Tensor leaf(StringRef name, const onnx::TensorProto& tensor);
  Tensor state(StringRef name, const onnx::TensorProto& tensor);
  std::optional<int64_t> counterStart(StringRef name);
  Tensor optimizerOutput(const onnx::NodeProto& node, StringRef output, int depth);
  Tensor biasCorrection(StringRef counterName, double rate, bool root);
  Tensor isFirst() {
    return emit.compare(train::ComparePredicate::gt, Value(scalar(train::ScalarKind::first_step, 0)), constant(0.5));
  }
  bool startsAsParameter(const Tensor& start);
  LogicalResult integersToFloats();
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
  DenseSet<Value> wholeNumbers;                               // f32 that counts
};

Value Update::scalar(train::ScalarKind kind, double v) {
  for (auto [i, known] : llvm::enumerate(scalars))
    if (known.first == kind && known.second == v) return block->getArgument(2 + states.size() + i);
  scalars.emplace_back(kind, v);
  return block->addArgument(scalarType, parameter.getLoc());
}

// Whether a tensor holds the parameter's initial values.
bool Update::startsAsParameter(const Tensor& start) {
  const onnx::TensorProto* own = importer.initializer(variable);
  Tensor initial = own ? importer.initialValue(*own) : Tensor();
  return initial && initial.type() == start.type() &&
         initial.constant()->elements().f == start.constant()->elements().f;
}

// What is kept for each element from step to step: a tensor of the parameter's shape, or a number that is the same for
// all elements. The runtime starts states at zero; any other start is selected in the first step.
Tensor Update::state(StringRef name, const onnx::TensorProto& tensor) {
  Tensor start = importer.initialValue(tensor);
  if (!start) return {};
  bool zero = start.constant()->isSplat() && start.constant()->splatValue() == 0;
  if (!start.constant()->isSplat() && !startsAsParameter(start))
    return error() << "the state '" << name
                   << "' starts with other values than one number or those of the parameter, which is not supported",
           Tensor();
  // "w.momentum" of the parameter "w" is the state "momentum".
  StringRef shortName = name;
  if (shortName.consume_front(variable) || shortName.consume_back(variable)) shortName = shortName.trim("._:/");
  bool plain = !shortName.empty() && shortName.find_first_of("./:") == StringRef::npos && shortName != name;
  std::string own = plain ? shortName.str() : "state" + std::to_string(states.size());
  Value argument = block->insertArgument(2 + states.size(), scalarType, parameter.getLoc());
  states.emplace_back(name, own);
  Tensor current = argument;
  if (!zero) {
    Tensor first =
        start.constant()->isSplat() ? constant(start.constant()->splatValue()) : Tensor(block->getArgument(0));
    current = emit.select(isFirst(), first, current);
  }
  if (!start.isFloat()) wholeNumbers.insert(current.value());
  return emit.cast(current, start.elementType());
}

// Where a counter starts to which every step adds one; nothing if it is not such a counter.
std::optional<int64_t> Update::counterStart(StringRef name) {
  const onnx::TensorProto* tensor = importer.initializer(name);
  Tensor start = tensor ? importer.initialValue(*tensor) : Tensor();
  const onnx::NodeProto* next = form.producer(form.binding(name));
  if (!start || start.count() != 1 || !next || next->op_type() != "Add" || next->input_size() != 2) return std::nullopt;
  if (next->input(0) != name && next->input(1) != name) return std::nullopt;
  StringRef other = next->input(0) == name ? next->input(1) : next->input(0);
  Tensor one;
  if (!form.binding(other).empty()) return std::nullopt;
  if (const onnx::TensorProto* by = importer.initializer(other))
    one = importer.initialValue(*by);
  else if (const onnx::NodeProto* by = form.producer(other);
           by && by->op_type() == "Constant" && by->attribute_size() == 1 && by->attribute(0).has_t())
    one = constantTensor(emit, importer.model, by->attribute(0).t());
  double first = start.constant()->splatValue();
  if (!one || one.count() != 1 || one.constant()->splatValue() != 1 || first != std::floor(first)) return std::nullopt;
  return int64_t(first);
}

Tensor Update::leaf(StringRef name, const onnx::TensorProto& tensor) {
  if (llvm::is_contained(form.variables(), name))
    return error() << "uses another parameter, '" << name << "'", Tensor();
  ArrayRef<int64_t> shape(tensor.dims().data(), tensor.dims().size());
  bool scalarShape = elementCount(shape) == 1;
  if (!form.binding(name).empty()) {
    bool whole = shape == cast<RankedTensorType>(parameter.getType()).getShape();
    if (!whole && !scalarShape)
      return error() << "the state '" << name << "' has neither the parameter's shape nor one element", Tensor();
    auto start = counterStart(name);
    if (!start) return state(name, tensor);
    // Its value in update t, counted from 1, is start + t - 1.
    Tensor t = scalar(train::ScalarKind::step, 0);
    if (*start != 1) t = add(t, constant(double(*start - 1)));
    wholeNumbers.insert(t.value());
    return emit.cast(t, elementType(emit.context(), tensor.data_type()));
  }
  Tensor value = importer.initialValue(tensor);
  if (!value) return {};
  if (!value.constant()->isSplat())
    return error() << "uses the tensor '" << name
                   << "'; an update may use numbers and states of the parameter's shape only",
           Tensor();
  return Constant::splat(RankedTensorType::get({}, value.elementType()), value.constant()->splatValue());
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

// 1 - rate^T, or its square root, for the counter's value T. Of a counter that starts at 1 it is a step scalar of the
// update's number t, which is T; where it starts at 0, 1 - rate^(t-1) = ((1 - rate^t) - (1 - rate)) / rate.
Tensor Update::biasCorrection(StringRef counterName, double rate, bool root) {
  auto start = form.binding(counterName).empty() ? std::nullopt : counterStart(counterName);
  if (start == 1)
    return Tensor(scalar(root ? train::ScalarKind::sqrt_bias_correction : train::ScalarKind::bias_correction, rate));
  Tensor correction;
  if (start == 0 && rate != 0) {
    correction = emit.binary<train::DivOp>(
        sub(Value(scalar(train::ScalarKind::bias_correction, rate)), constant(1 - rate)), constant(rate));
  } else {
    Tensor t = value(counterName, 0);
    if (!t) return {};
    correction = sub(constant(1), emit.binary<train::PowOp>(constant(rate), emit.cast(t, f32)));
  }
  return root ? emit.unary<train::SqrtOp>(correction) : correction;
}

// An output of Adagrad, Adam or Momentum.
Tensor Update::optimizerOutput(const onnx::NodeProto& node, StringRef output, int depth) {
  if (!optimizerStates(node.op_type()))
    return error() << "operator " << node.domain() << "." << node.op_type() << " is not supported", Tensor();
  int variables = optimizerVariables(node), states = optimizerStates(node.op_type()), index = 0;
  if (!variables) return error() << node.op_type() << " has the wrong number of inputs or outputs", Tensor();
  while (node.output(index) != output) ++index;
  int which = index % variables;
  auto input = [&](int group) { return value(node.input(2 + group * variables + which), depth + 1); };
  std::string counterName = node.input(1);
  OptimizerInputs inputs{value(node.input(0), depth + 1), input(0), input(1), {}};
  if (!inputs.rate || !inputs.x || !inputs.gradient) return {};
  for (int s = 0; s < states; ++s) {
    inputs.states.push_back(input(2 + s));
    if (!inputs.states.back()) return {};
  }
  auto start = form.binding(counterName).empty() ? std::nullopt : counterStart(counterName);
  Counter counter;
  counter.value = [&] { return emit.cast(value(counterName, depth + 1), f32); };
  counter.correction = [&](double rate, bool root) { return biasCorrection(counterName, rate, root); };
  counter.whenPositive = [&](const Tensor& then, const Tensor& otherwise) {
    if (start && *start > 0) return then;
    // Of a counter from 0 only the first value is not positive.
    if (start == 0) return emit.select(isFirst(), otherwise, then);
    Tensor t = counter.value();
    if (t && t.constant()) return t.constant()->splatValue() > 0 ? then : otherwise;
    return emit.select(emit.compare(train::ComparePredicate::gt, t, constant(0)), then, otherwise);
  };
  SmallVector<Tensor> results = optimizerStep(emit, node, inputs, counter);
  if (results.empty()) return {};
  for (int k = 0; k <= states; ++k)
    scope.values[node.output(k * variables + which)] = GraphValue{results[k], std::nullopt};
  return results[index / variables];
}

// Whole numbers, such as a count of steps, are computed in f32, which is exact up to 2^24.
LogicalResult Update::integersToFloats() {
  auto isInteger = [](Value v) {
    Type element = cast<RankedTensorType>(v.getType()).getElementType();
    return element.isInteger(32) || element.isInteger(64);
  };
  for (Operation& op : llvm::make_early_inc_range(*block)) {
    if (op.getNumResults() != 1) continue;
    Value result = op.getResult(0);
    if (auto cast = dyn_cast<train::CastOp>(op)) {
      Value operand = cast.getOperand();
      if (operand.getType() == result.getType() || wholeNumbers.contains(operand)) {
        if (!isInteger(result) && operand.getType() != result.getType()) continue;
        result.replaceAllUsesWith(operand);
        cast.erase();
        continue;
      }
      if (isInteger(result) && operand.getType() == scalarType)
        return error() << "converts a number to an integer, which is not supported";
    }
    if (!isInteger(result)) continue;
    if (auto constant = dyn_cast<train::ConstantOp>(op)) {
      auto data = cast<DenseElementsAttr>(constant.getValue());
      constant.setValueAttr(DenseElementsAttr::get(scalarType, float(data.getSplatValue<APInt>().getSExtValue())));
    } else if (!isa<train::AddOp, train::SubOp, train::MulOp, train::NegOp, train::MinOp, train::MaxOp, train::SelectOp,
                    train::CastOp>(op)) {
      return error() << "computes integers by " << op.getName() << ", which is not supported";
    }
    result.setType(scalarType);
    wholeNumbers.insert(result);
  }
  return success();
}

// Constants become step scalars: a constant op would be hoisted out of the region by the canonicalizer.
LogicalResult Update::constantsToScalars() {
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(*block)))
    if (op.use_empty() && !isa<train::YieldOp>(op)) op.erase();
  if (failed(integersToFloats())) return failure();
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

OwningOpRef<train::OptimizerOp> Update::build(ArrayRef<std::string> followers) {
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
  for (const onnx::NodeProto& node : form.nodes())
    for (const std::string& output : node.output())
      if (form.gradientOf(output) == variable) scope.values[output] = GraphValue{Tensor(gradient), std::nullopt};

  SmallVector<Value> results;
  Tensor updated = value(form.binding(variable), 0);
  if (!updated) return nullptr;
  results.push_back(emit.materialize(updated));
  for (const std::string& follower : followers)
    if (!value(follower, 0)) return nullptr;
  // The next value of a state may use another state: the list grows.
  for (size_t i = 0; i < states.size(); ++i) {
    Tensor next = value(form.binding(states[i].first), 0);
    if (!next) return nullptr;
    results.push_back(emit.materialize(emit.cast(next, f32)));
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
  // What else is updated belongs to the parameter that it is computed from.
  llvm::StringMap<std::vector<std::string>> followers;
  for (const std::string& name : form.others()) {
    const onnx::TensorProto* tensor = importer.initializer(name);
    std::vector<std::string> variables = form.variablesOf(form.binding(name));
    if (variables.empty() || !tensor) continue;  // a counter, perhaps: updates that use it find it
    if (variables.size() > 1)
      return emitError(importer.model.location())
             << "training_info: the update of '" << name << "' uses several parameters, '" << variables[0] << "' and '"
             << variables[1] << "', which is not supported";
    followers[variables[0]].push_back(name);
  }
  for (auto parameter : llvm::make_early_inc_range(module.getOps<train::ParameterOp>())) {
    if (!parameter.getTrainable()) continue;
    StringRef variable = train::nameOf(parameter.getSymName());
    if (!llvm::is_contained(form.variables(), variable))
      return emitError(parameter.getLoc()) << "training_info: '" << variable
                                           << "' was folded or merged by the exporter; "
                                              "give --loss and --optimizer to train the graph alone";
    OwningOpRef<train::OptimizerOp> op = Update(importer, form, parameter, variable).build(followers[variable]);
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
