// One node as its handler sees it: inputs, attributes, results.
#include "frontend/onnx/importer/Importer.h"
#include "ir/Train/ParameterNames.h"

using namespace mlir;

namespace sheaf::frontend {

Node::Node(Importer& importer, Scope& scope, const onnx::NodeProto& proto, int64_t opset)
    : importer(importer), emit(importer.emit), scope(scope), proto(proto), opset(opset) {}

InFlightDiagnostic Node::error() const {
  return emit.error();
}

StringRef Node::torchExpression() const {
  return Model::metadata(proto.metadata_props(), kFxNode);
}

std::vector<Tensor> Node::tensors() const {
  std::vector<Tensor> result;
  for (const GraphValue& value : operands) result.push_back(value.tensor);
  return result;
}

LogicalResult Node::set(int64_t i, const Tensor& tensor) {
  if (!tensor) return failure();
  if (uses(i)) scope.values[proto.output(i)] = GraphValue{tensor, std::nullopt};
  return success();
}

LogicalResult Node::setSequence(int64_t i, std::vector<Tensor> tensors) {
  if (uses(i)) scope.values[proto.output(i)] = GraphValue{Tensor(), std::move(tensors)};
  return success();
}

void Node::setValue(int64_t i, GraphValue value) {
  if (uses(i)) scope.values[proto.output(i)] = std::move(value);
}

const onnx::AttributeProto* Node::attribute(StringRef name) const {
  for (const onnx::AttributeProto& attribute : proto.attribute()) {
    if (attribute.name() != name) continue;
    if (attribute.ref_attr_name().empty()) return &attribute;
    auto it = scope.attributes.find(attribute.ref_attr_name());
    return it == scope.attributes.end() ? nullptr : it->second;
  }
  return nullptr;
}

int64_t Node::integer(StringRef name, int64_t otherwise) const {
  const onnx::AttributeProto* a = attribute(name);
  return a ? a->i() : otherwise;
}

double Node::number(StringRef name, double otherwise) const {
  const onnx::AttributeProto* a = attribute(name);
  return a ? a->f() : otherwise;
}

StringRef Node::string(StringRef name, StringRef otherwise) const {
  const onnx::AttributeProto* a = attribute(name);
  return a ? StringRef(a->s()) : otherwise;
}

std::optional<Shape> Node::integers(StringRef name) const {
  const onnx::AttributeProto* a = attribute(name);
  if (!a) return std::nullopt;
  return Shape(a->ints().begin(), a->ints().end());
}

std::optional<std::vector<int64_t>> Node::knownIntegers(int64_t i, StringRef what) const {
  Tensor x = input(i);
  if (!x || !x.constant() || x.isFloat()) {
    error() << what << " must be known when the graph is compiled, but depends on data or on a weight";
    return std::nullopt;
  }
  if (x.count() > (1 << 20)) {
    error() << what << " has too many elements";
    return std::nullopt;
  }
  return x.constant()->integers();
}

std::optional<std::vector<double>> Node::knownFloats(int64_t i, StringRef what) const {
  Tensor x = input(i);
  auto read = x.value() ? x.value().getDefiningOp<train::ReadOp>() : train::ReadOp();
  if (const onnx::TensorProto* tensor = read ? importer.initializer(train::nameOf(read.getParameter())) : nullptr)
    x = constantTensor(emit, importer.model, *tensor);
  if (!x.constant() || !x.isFloat()) {
    error() << what << " must be known when the graph is compiled, but depends on data or on a weight";
    return std::nullopt;
  }
  if (x.count() > (1 << 20)) {
    error() << what << " has too many elements";
    return std::nullopt;
  }
  return x.constant()->elements().f;
}

FailureOr<std::optional<Shape>> Node::axes(int64_t i, int64_t rank) const {
  std::optional<Shape> axes = integers("axes");
  if (!axes && input(i)) {
    auto known = knownIntegers(i, "the list of axes");
    if (!known) return failure();
    axes = Shape(known->begin(), known->end());
  }
  if (!axes) return std::optional<Shape>();
  for (int64_t& axis : *axes)
    if (!emit.checkAxis(axis, rank)) return failure();
  llvm::sort(*axes);
  if (std::adjacent_find(axes->begin(), axes->end()) != axes->end())
    return error() << "an axis is named twice", failure();
  return axes;
}

}  // namespace sheaf::frontend
