// Walks the graph: looks up values, calls handlers, inlines functions, imports initializers.
#include "frontend/onnx/importer/Importer.h"

#include "frontend/onnx/importer/Signatures.h"
#include "frontend/onnx/survey/Surveyor.h"
#include "frontend/onnx/training/OptimizerRules.h"
#include "ir/Train/ParameterNames.h"

#include "llvm/Support/Path.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Functions may call each other many times over, and loops may run forever: more nodes than this is a mistake or an
// attack.
constexpr int64_t kMaxNodes = 1 << 19;
constexpr size_t kMaxCalls = 64;
// Ops of a step, before it is differentiated. The largest models that are trained have some 10,000.
constexpr int64_t kMaxOps = 1 << 16;
// Elements of known tensors that are read or computed, and tensors of sequences that are copied, in the time that
// importing a node takes.
constexpr int64_t kElementsPerNode = 1 << 13, kCopiesPerNode = 16;
// The nodes that a part counts as; docs/onnx.md says it of a recurrence's steps.
constexpr int64_t kNodesPerPart = 16;
// Constants of the model up to this many elements are read; larger ones become frozen parameters.
constexpr int64_t kMaxConstant = 1 << 20;

std::string functionKey(StringRef domain, StringRef name, StringRef overload) {
  return ((domain == "ai.onnx" ? StringRef() : domain) + ":" + name + ":" + overload).str();
}

// Returns how many elements of known values the node read and computed. A node with an operand of data reads only known
// integers, such as indices and shapes.
int64_t knownElements(const Node& node) {
  if (node.proto.op_type() == "Shape" || node.proto.op_type() == "Size") return 0;
  const bool folded = llvm::all_of(node.operands, [](const GraphValue& x) { return !x.tensor.value(); });
  llvm::SmallDenseMap<const Constant::Bytes*, int64_t, 8> read, made;
  auto add = [](auto& map, const Tensor& x) {
    if (x.constant()) map[x.constant()->data.get()] = x.storedCount();
  };
  for (const GraphValue& x : node.operands)
    if (x.tensor && (folded || !(x.tensor.isFloat() || x.tensor.isBool()))) add(read, x.tensor);
  for (const std::string& output : node.proto.output())
    if (auto it = node.scope.values.find(output); it != node.scope.values.end()) add(made, it->second.tensor);
  int64_t elements = 0;
  for (auto [data, count] : read) elements += made.contains(data) ? 0 : count;  // a view shares its operand's
  for (auto [data, count] : made) elements += read.contains(data) ? 0 : count;
  return elements;
}

}  // namespace

Importer::Importer(MLIRContext& context, const Model& model, const ImportOptions& options)
    : model(model), options(options), builder(&context), emit(builder) {
  root.root = true;
  builder.setListener(&counter);
  for (const onnx::FunctionProto& function : model.proto().functions())
    functions.try_emplace(functionKey(function.domain(), function.name(), function.overload()), &function);
}

Location Importer::locationOf(const onnx::NodeProto& node, int64_t ordinal) const {
  StringRef name = node.name();
  if (name.empty() && node.output_size()) name = node.output(0);
  Location place = FileLineColLoc::get(builder.getContext(), model.path(), unsigned(ordinal), 0);
  return name.empty() ? place : Location(NameLoc::get(StringAttr::get(builder.getContext(), name), place));
}

LogicalResult Importer::importNodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, Scope& scope) {
  for (auto [i, node] : llvm::enumerate(nodes))
    if (failed(importNode(node, scope, i + 1))) return failure();
  return success();
}

void Importer::OpCounter::notifyOperationInserted(Operation* op, OpBuilder::InsertPoint) {
  ++ops;
  operands = std::max<int64_t>(operands, op->getNumOperands());
}

bool Importer::isTooLarge() const {
  return countedNodes > kMaxNodes || counter.ops > kMaxOps || counter.operands > kMaxOperands;
}

LogicalResult Importer::countNodes(int64_t nodes) {
  countedNodes += nodes;
  if (!isTooLarge()) return success();
  if (countedNodes > kMaxNodes)
    return emit.error() << "the model's functions, loops, recurrences and known values expand to more than "
                        << kMaxNodes << " nodes";
  if (counter.ops > kMaxOps)
    return emit.error() << "the model has more than " << kMaxOps
                        << " operations (before the backward pass); train a smaller one, or let loops and recurrences "
                           "take fewer steps";
  return emit.error() << "has more than " << kMaxOperands << " operands; split it into several operators";
}

LogicalResult Importer::countElements(int64_t elements) {
  return countNodes(elements / kElementsPerNode);
}

LogicalResult Importer::countCopies(int64_t tensors) {
  return countNodes(tensors / kCopiesPerNode);
}

LogicalResult Importer::countParts(int64_t parts) {
  return countNodes(kNodesPerPart * std::min(parts, kMaxNodes));
}

int64_t Importer::opsetOf(const onnx::NodeProto& node, const Scope& scope) const {
  int64_t opset = 0;
  if (scope.function) {
    for (const onnx::OperatorSetIdProto& import : scope.function->opset_import())
      if (import.domain() == node.domain() || (isDefaultDomain(import.domain()) && isDefaultDomain(node.domain())))
        opset = std::max<int64_t>(opset, import.version());
  }
  return opset ? opset : model.opset(node.domain());
}

bool Importer::inTable(const onnx::NodeProto& node, int64_t opset) const {
  const Operator* other = nullptr;
  return findOperator(node.domain(), node.op_type(), opset, other);
}

const onnx::FunctionProto* Importer::functionOf(const onnx::NodeProto& node) const {
  return functions.lookup(functionKey(node.domain(), node.op_type(), node.overload()));
}

LogicalResult Importer::importNode(const onnx::NodeProto& node, Scope& scope, int64_t ordinal) {
  if (!surveyor) return importOne(node, scope, ordinal);
  surveyor->importNode(*this, node, scope, ordinal);
  return success();
}

LogicalResult Importer::importOne(const onnx::NodeProto& node, Scope& scope, int64_t ordinal) {
  int64_t opset = opsetOf(node, scope);
  std::string what = "node '" + (node.name().empty() && node.output_size() ? node.output(0) : node.name()) + "' (" +
                     (node.domain().empty() ? "" : node.domain() + ".") + node.op_type() + ", opset " +
                     std::to_string(opset) + ")";
  emit.enter(locationOf(node, ordinal), what);
  if (failed(countNodes(1))) return failure();
  if (std::max(node.input_size(), node.output_size()) > kMaxOperands)
    return emit.error() << "has " << std::max(node.input_size(), node.output_size())
                        << " inputs or outputs, and at most " << kMaxOperands
                        << " are supported; combine or divide in several steps";

  auto function = functions.find(functionKey(node.domain(), node.op_type(), node.overload()));
  const Operator* other = nullptr;
  const Operator* op = findOperator(node.domain(), node.op_type(), opset, other);
  if (function == functions.end() && !op) {
    if (surveyor) return surveyor->unsupported(node, opset), failure();
    auto diagnostic = emit.error();
    if (other && opset == 0)
      return diagnostic << "the model does not import the domain '" << node.domain()
                        << "', so the version of the operator is unknown: add the domain to the model's opset_import, "
                           "as by onnx.helper.make_opsetid('"
                        << node.domain() << "', " << other->since << ")";
    diagnostic << "the operator is not supported";
    if (other) {
      diagnostic << " at this opset (it is from " << other->since;
      if (other->last) diagnostic << " to " << other->last;
      return diagnostic << "); convert the model with onnx.version_converter or export it again";
    }
    if (StringRef why = whyUnsupported(node.domain(), node.op_type()); !why.empty()) diagnostic << " (" << why << ")";
    return diagnostic << "; write the model without it, or give its definition as a function of the model. "
                         "docs/onnx.md lists the supported operators";
  }

  Node view(*this, scope, node, opset);
  for (auto [i, name] : llvm::enumerate(node.input())) {
    if (name.empty()) {
      view.operands.push_back({});
      continue;
    }
    GraphValue* value = lookup(name, scope, &node, int(i));
    if (!value) return failure();
    if (value->sequence && failed(countCopies(value->sequence->size()))) return failure();
    view.operands.push_back(*value);
  }

  if (function != functions.end()) return callFunction(node, *function->second, scope);
  for (int64_t i = 0; i < op->required; ++i)
    if (i >= view.inputs() || (!view.input(i) && !view.sequence(i)))
      return emit.error() << "input " << i << " is missing";
  if (failed(checkSignature(view))) return failure();
  for (const GraphValue& operand : view.operands)
    if (operand.sequence && !op->facts.sequences) return emit.error() << "takes tensors, not a sequence";
  stopGradients(view);
  if (failed(op->handler(view))) return failure();
  return countElements(knownElements(view));
}

// Cuts the operands that PyTorch detaches: no gradient passes through them.
void Importer::stopGradients(Node& node) {
  if (evaluates()) return;
  bool computed = false;
  for (auto [i, operand] : llvm::enumerate(node.operands)) {
    computed |= operand.tensor.value() && operand.tensor.isFloat();
    if (Detached::isDetach(node.proto) || detached.stops(&node.proto, int(i)))
      operand.tensor = emit.stopGradient(operand.tensor);
  }
  if (detached.isUnclear(&node.proto) && computed)
    emitWarning(emit.location()) << "this node reads a detached value (Tensor.detach), but the exporter's optimizer "
                                    "has removed which operand it "
                                    "is: gradients pass through all of them. Export with optimize=False";
}

GraphValue* Importer::lookup(StringRef name, Scope& scope, const onnx::NodeProto* user, int operand) {
  bool ofGraph = false;  // not of a function's body
  for (Scope* s = &scope; s; s = s->parent) {
    ofGraph |= s->root;
    if (auto it = s->values.find(name); it != s->values.end()) return &it->second;
    if (!s->root) continue;
    auto it = initializers.find(name);
    if (it == initializers.end()) break;
    Tensor tensor = importInitializer(*it->second, user, operand);
    if (!tensor) return nullptr;
    // Not cached: a merged initializer stands for a different parameter per use.
    GraphValue& value = reads[name];
    value = GraphValue{tensor, std::nullopt};
    return &value;
  }
  if (const std::string why = ofGraph ? whyUnmade(name) : ""; !why.empty())
    emit.error() << why;
  else
    emit.error() << "the value '" << name << "' is used before it is defined; the graph has a cycle or is not sorted";
  return nullptr;
}

LogicalResult Importer::callFunction(const onnx::NodeProto& node, const onnx::FunctionProto& function, Scope& scope) {
  if (llvm::is_contained(calls, &function) || calls.size() == kMaxCalls)
    return emit.error() << "the function calls itself, or calls are nested too deeply";
  Scope body;
  body.function = &function;
  for (const onnx::AttributeProto& attribute : function.attribute_proto())
    body.attributes[attribute.name()] = &attribute;
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    const onnx::AttributeProto* given = &attribute;
    if (!attribute.ref_attr_name().empty()) given = scope.attributes.lookup(attribute.ref_attr_name());
    if (given) body.attributes[attribute.name()] = given;
  }
  if (node.input_size() > function.input_size()) return emit.error() << "has more inputs than its function";
  for (int i = 0; i < function.input_size(); ++i) {
    bool given = i < node.input_size() && !node.input(i).empty();
    GraphValue* value = given ? lookup(node.input(i), scope, &node) : nullptr;
    if (given && !value) return failure();
    body.values[function.input(i)] = value ? *value : GraphValue();
  }
  calls.push_back(&function);
  LogicalResult result = importNodes(function.node(), body);
  calls.pop_back();
  if (failed(result)) return failure();
  for (int i = 0; i < node.output_size() && i < function.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    auto it = body.values.find(function.output(i));
    if (it == body.values.end())
      return emit.error() << "the function does not define its output '" << function.output(i) << "'";
    scope.values[node.output(i)] = it->second;
  }
  return success();
}

// The bytes of a constant: in the model, or in an external file (then they are the model's arithmetic, not a weight).
Tensor constantTensor(Emitter& emit, const Model& model, const onnx::TensorProto& tensor) {
  Type type = elementType(emit.context(), tensor.data_type());
  Shape shape(tensor.dims().begin(), tensor.dims().end());
  auto count = elementCount(shape);
  if (!type || !count || *count > kMaxFolded)
    return emit.error() << "the constant '" << tensor.name() << "' has an unsupported type ("
                        << dataTypeName(tensor.data_type()) << ") or size",
           Tensor();
  auto complete = [&](std::optional<Constant> constant) -> Tensor {
    if (constant) return *constant;
    return emit.error() << "the constant '" << tensor.name() << "' has fewer or more elements than its shape takes",
           Tensor();
  };
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    if (failed(model.source(tensor))) return {};
    const Expected<StringRef> bytes = model.bytes(tensor);
    if (!bytes.ok())
      return emit.error() << "the constant '" << tensor.name()
                          << "' is needed to compile, unlike weights: " << bytes.status().message(),
             Tensor();
    return complete(Constant::fromBytes(RankedTensorType::get(shape, type), *bytes));
  }
  StringRef raw = model.rawBytes(tensor);
  if (!raw.empty() || *count == 0) return complete(Constant::fromBytes(RankedTensorType::get(shape, type), raw));

  std::string bytes;
  auto append = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  for (float v : tensor.float_data()) append(v);
  for (double v : tensor.double_data()) append(v);
  for (int64_t v : tensor.int64_data()) append(v);
  unsigned width = type.getIntOrFloatBitWidth();
  for (int32_t v : tensor.int32_data()) {
    if (width == 32)
      append(v);
    else if (width == 16)
      append(int16_t(v));
    else
      append(int8_t(v));
  }
  return complete(Constant::fromBytes(RankedTensorType::get(shape, type), bytes));
}

Tensor Importer::initialValue(const onnx::TensorProto& tensor) {
  auto it = initials.find(tensor.name());
  return it == initials.end() ? constantTensor(emit, model, tensor) : it->second;
}

Tensor Importer::importInitializer(const onnx::TensorProto& tensor, const onnx::NodeProto* user, int operand) {
  ParameterRole role = parameters.role(tensor, user, operand);
  const bool empty = elementCount(ArrayRef(tensor.dims().data(), tensor.dims().size())) == 0;
  if (!role.parameter || empty) {
    if (empty) role.reason = "no elements";
    if (auto it = root.values.find(tensor.name()); it != root.values.end()) return it->second.tensor;
    Shape shape(tensor.dims().begin(), tensor.dims().end());
    bool large = elementCount(shape).value_or(0) > kMaxConstant;
    auto type = elementType(builder.getContext(), tensor.data_type());
    if (!large || !isa_and_nonnull<FloatType>(type)) {
      Tensor constant = initialValue(tensor);
      // A merged initializer stands for a different tensor per use, so it is not cached.
      if (constant && !parameters.isMerged(tensor)) root.values[tensor.name()] = GraphValue{constant, std::nullopt};
      if (constant && constant.isFloat() && constant.rank())
        decide((role.name.empty() ? tensor.name() : role.name) + ": constant, " + role.reason);
      return constant;
    }
    role.reason += "; large";
  }
  return parameter(role, tensor);
}

train::ParameterOp Importer::parameterOf(const Tensor& tensor) {
  auto read = tensor && tensor.value() ? tensor.value().getDefiningOp<train::ReadOp>() : train::ReadOp();
  return read ? module->lookupSymbol<train::ParameterOp>(read.getParameter()) : train::ParameterOp();
}

// The rows of a folded look-up that differ, in the order in which they come first.
ElementsAttr Importer::firstRows(const onnx::TensorProto& tensor, const ParameterRole& role) {
  const StringRef bytes = *model.bytes(tensor);  // Parameters::findRows() has read them
  size_t size = bytes.size() / role.rows->size();
  std::string first;
  for (auto [i, row] : llvm::enumerate(*role.rows))
    if (first.size() == row * size) first += bytes.substr(i * size, size);
  auto type = RankedTensorType::get(role.shape, elementType(builder.getContext(), tensor.data_type()));
  return DenseElementsAttr::getFromRawBuffer(type, ArrayRef<char>(first.data(), first.size()));
}

FailureOr<Importer::Initial> Importer::initialOf(const ParameterRole& role, const onnx::TensorProto& tensor) {
  if (isUnstored(tensor)) return Initial{};
  if (role.rows && !role.holder) return Initial{{}, firstRows(tensor, role)};
  const onnx::TensorProto& holder = role.holder ? *role.holder : tensor;
  const FailureOr<std::optional<Model::Source>> source = model.source(holder);
  if (failed(source)) return failure();
  if (*source && !initials.contains(holder.name()))
    return Initial{train::SourceAttr::get(builder.getContext(), builder.getStringAttr((*source)->file),
                                          (*source)->offset, (*source)->length),
                   {}};
  const Tensor constant = initialValue(holder);
  if (!constant) return failure();
  // `value` has the parameter's shape: repetitions are written out unless it is a splat.
  auto type = RankedTensorType::get(role.shape, elementType(builder.getContext(), tensor.data_type()));
  return Initial{{}, constant.constant()->written().attribute().reshape(type)};
}

Tensor Importer::parameter(ParameterRole role, const onnx::TensorProto& tensor) {
  Type type = elementType(builder.getContext(), tensor.data_type());
  Value value;
  GraphValue& read = reads[("parameter " + role.name)];
  if (read.tensor) {
    value = read.tensor.value();
  } else {
    const FailureOr<Initial> initial = initialOf(role, tensor);
    if (failed(initial)) return {};
    if (isUnstored(tensor)) role.reason = "without initial values: the model's folder has no checkpoint";
    // Compiling says so later; a survey does not get there.
    if (surveyor && role.trainable && type.isF64())
      emit.error() << "parameter '" << role.name << "' is of f64, which is not trained: export the model in f32";
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPoint(step);
    auto op = train::ParameterOp::create(
        builder, emit.location(), builder.getStringAttr(train::symbolOf(role.name)),
        TypeAttr::get(RankedTensorType::get(role.shape, type)), builder.getBoolAttr(role.trainable), initial->source,
        initial->value, role.permutation ? builder.getDenseI64ArrayAttr(*role.permutation) : DenseI64ArrayAttr());
    if (!role.aliases.empty()) {
      SmallVector<StringRef> aliases(role.aliases.begin(), role.aliases.end());
      op->setDiscardableAttr(train::kAliasesAttr, builder.getStrArrayAttr(aliases));
    }
    if (!role.parameter) op->setDiscardableAttr(train::kLargeConstantAttr, builder.getUnitAttr());
    if (!role.reason.empty()) op->setDiscardableAttr("train.reason", builder.getStringAttr(role.reason));
    builder.setInsertionPointToEnd(&step.getBody().front());
    value = train::ReadOp::create(builder, emit.location(), RankedTensorType::get(role.shape, type),
                                  train::symbolOf(role.name));
    read.tensor = value;
  }
  Tensor result = value;
  if (role.viewTransposed) result = emit.transpose(result, {1, 0});
  if (role.rows) {
    auto type = RankedTensorType::get({int64_t(role.rows->size())}, builder.getI64Type());
    result =
        emit.gather(result, *Constant::fromAttribute(DenseElementsAttr::get(type, ArrayRef<int64_t>(*role.rows))), 0);
  }
  return emit.reshape(result, Shape(tensor.dims().begin(), tensor.dims().end()));
}

}  // namespace sheaf::frontend
