// Walks the graph: looks up values, calls handlers, inlines functions, imports initializers.
#include "frontend/onnx/Importer.h"

#include "llvm/Support/Path.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Functions may call each other many times over, and loops may run forever: more nodes than this is a mistake or an
// attack.
constexpr int64_t kMaxNodes = 1 << 19;
constexpr size_t kMaxCalls = 64;
// Constants of the model up to this many elements are read; larger ones become frozen parameters.
constexpr int64_t kMaxConstant = 1 << 20;

constexpr llvm::ArrayRef<Operator> (*kTables[])() = {
    constantOperators, elementwiseOperators,   shapeOperators,     indexingOperators,  reductionOperators,
    productOperators,  normalizationOperators, lossOperators,      attentionOperators, controlOperators,
    sequenceOperators, einsumOperators,        recurrentOperators, resizeOperators,    imageOperators,
    signalOperators,   reorderOperators,
};

// The entry for an operator at an opset; `known`: whether the name exists at another opset.
const Operator* findOperator(StringRef name, int64_t opset, const Operator*& other) {
  static const auto* byName = [] {
    auto* map = new llvm::StringMap<SmallVector<const Operator*, 1>>;
    for (auto table : kTables)
      for (const Operator& op : table()) (*map)[op.name].push_back(&op);
    return map;
  }();
  auto it = byName->find(name);
  if (it == byName->end()) return nullptr;
  for (const Operator* op : it->second) {
    if (op->since <= opset && (op->last == 0 || opset <= op->last)) return op;
    other = op;
  }
  return nullptr;
}

std::string functionKey(StringRef domain, StringRef name, StringRef overload) {
  return ((domain == "ai.onnx" ? StringRef() : domain) + ":" + name + ":" + overload).str();
}

bool isDefaultDomain(StringRef domain) {
  return domain.empty() || domain == "ai.onnx";
}

}  // namespace

std::vector<SupportedOperator> supportedOperators() {
  std::vector<SupportedOperator> result;
  for (auto table : kTables)
    for (const Operator& op : table()) result.push_back({"ai.onnx", op.name.str(), op.since, op.last});
  llvm::sort(result, [](auto& a, auto& b) { return std::tie(a.name, a.since) < std::tie(b.name, b.since); });
  return result;
}

Importer::Importer(MLIRContext& context, const Model& model, const ImportOptions& options)
    : model(model), options(options), builder(&context), emit(builder) {
  root.root = true;
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

LogicalResult Importer::unroll(int64_t nodes) {
  if ((inlined += nodes) <= kMaxNodes) return success();
  return emit.error() << "the model's functions, loops and recurrences expand to more than " << kMaxNodes << " nodes";
}

LogicalResult Importer::importNode(const onnx::NodeProto& node, Scope& scope, int64_t ordinal) {
  int64_t opset = 0;
  if (scope.function) {
    for (const onnx::OperatorSetIdProto& import : scope.function->opset_import())
      if (import.domain() == node.domain() || (isDefaultDomain(import.domain()) && isDefaultDomain(node.domain())))
        opset = std::max<int64_t>(opset, import.version());
  }
  if (opset == 0) opset = model.opset(node.domain());

  std::string what = "node '" + (node.name().empty() && node.output_size() ? node.output(0) : node.name()) + "' (" +
                     (node.domain().empty() ? "" : node.domain() + ".") + node.op_type() + ", opset " +
                     std::to_string(opset) + ")";
  emit.enter(locationOf(node, ordinal), what);
  if (failed(unroll(1))) return failure();

  auto function = functions.find(functionKey(node.domain(), node.op_type(), node.overload()));
  const Operator* other = nullptr;
  const Operator* op = isDefaultDomain(node.domain()) ? findOperator(node.op_type(), opset, other) : nullptr;
  if (function == functions.end() && !op) {
    auto diagnostic = emit.error() << "the operator is not supported";
    if (other) {
      diagnostic << " at this opset (it is from " << other->since;
      if (other->last) diagnostic << " to " << other->last;
      return diagnostic << "); convert the model with onnx.version_converter or export it again";
    }
    return diagnostic << "; write the model without it, or give its definition as a function of the model. "
                         "docs/onnx.md lists the supported operators";
  }

  Node view(*this, scope, node, opset);
  for (const std::string& name : node.input()) {
    if (name.empty()) {
      view.operands.push_back({});
      continue;
    }
    GraphValue* value = lookup(name, scope, &node);
    if (!value) return failure();
    view.operands.push_back(*value);
  }

  if (function != functions.end()) return callFunction(node, *function->second, scope);
  for (int64_t i = 0; i < op->required; ++i)
    if (i >= view.inputs() || (!view.input(i) && !view.sequence(i)))
      return emit.error() << "input " << i << " is missing";
  for (const GraphValue& operand : view.operands)
    if (operand.sequence && !op->sequences) return emit.error() << "takes tensors, not a sequence";
  return op->handler(view);
}

GraphValue* Importer::lookup(StringRef name, Scope& scope, const onnx::NodeProto* user) {
  for (Scope* s = &scope; s; s = s->parent) {
    if (auto it = s->values.find(name); it != s->values.end()) return &it->second;
    if (!s->root) continue;
    auto it = initializers.find(name);
    if (it == initializers.end()) break;
    Tensor tensor = importInitializer(*it->second, user);
    if (!tensor) return nullptr;
    // Merged initializers mean another parameter to another user: they are looked up again.
    GraphValue& value = reads[name];
    value = GraphValue{tensor, std::nullopt};
    return &value;
  }
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
    auto source = model.source(tensor);
    if (failed(source) || !*source) return {};
    SmallString<256> path(llvm::sys::path::parent_path(model.path()));
    llvm::sys::path::append(path, (*source)->file);
    auto bytes = llvm::MemoryBuffer::getFileSlice(path, (*source)->length, (*source)->offset);
    if (!bytes || int64_t((*bytes)->getBufferSize()) != (*source)->length)
      return emit.error() << "the constant '" << tensor.name() << "' lies in '" << (*source)->file
                          << "', which cannot be read; it is needed to compile, unlike weights",
             Tensor();
    return complete(Constant::fromBytes(RankedTensorType::get(shape, type), (*bytes)->getBuffer()));
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

Tensor Importer::importInitializer(const onnx::TensorProto& tensor, const onnx::NodeProto* user) {
  ParameterRole role = parameters.role(tensor, user);
  if (!role.parameter) {
    if (auto it = root.values.find(tensor.name()); it != root.values.end()) return it->second.tensor;
    Shape shape(tensor.dims().begin(), tensor.dims().end());
    bool large = elementCount(shape).value_or(0) > kMaxConstant;
    auto type = elementType(builder.getContext(), tensor.data_type());
    if (!large || !isa_and_nonnull<FloatType>(type)) {
      Tensor constant = constantTensor(emit, model, tensor);
      if (constant) root.values[tensor.name()] = GraphValue{constant, std::nullopt};
      if (constant && constant.isFloat() && constant.rank()) decide(tensor.name() + ": constant, " + role.reason);
      return constant;
    }
    role.reason += "; large";
  }
  return parameter(role, tensor);
}

Tensor Importer::parameter(const ParameterRole& role, const onnx::TensorProto& tensor) {
  Type type = elementType(builder.getContext(), tensor.data_type());
  Value value;
  GraphValue& read = reads[("parameter " + role.name)];
  if (read.tensor) {
    value = read.tensor.value();
  } else {
    auto source = model.source(tensor);
    if (failed(source)) return {};
    train::SourceAttr where;
    ElementsAttr data;
    if (*source) {
      where = train::SourceAttr::get(builder.getContext(), builder.getStringAttr((*source)->file), (*source)->offset,
                                     (*source)->length);
    } else {
      Tensor constant = constantTensor(emit, model, tensor);
      if (!constant) return {};
      // `value` has the parameter's shape: repetitions are written out unless it is a splat.
      data = constant.constant()->written().attribute().reshape(RankedTensorType::get(role.shape, type));
    }
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPoint(step);
    auto op = train::ParameterOp::create(
        builder, emit.location(), builder.getStringAttr(role.name),
        TypeAttr::get(RankedTensorType::get(role.shape, type)), builder.getBoolAttr(role.trainable), where, data,
        role.permutation ? builder.getDenseI64ArrayAttr(*role.permutation) : DenseI64ArrayAttr());
    if (!role.reason.empty()) op->setDiscardableAttr("train.reason", builder.getStringAttr(role.reason));
    builder.setInsertionPointToEnd(&step.getBody().front());
    value = train::ReadOp::create(builder, emit.location(), RankedTensorType::get(role.shape, type), role.name);
    read.tensor = value;
  }
  Tensor result = value;
  if (role.viewTransposed) result = emit.transpose(result, {1, 0});
  return emit.reshape(result, Shape(tensor.dims().begin(), tensor.dims().end()));
}

}  // namespace sheaf::frontend
