// The initial values that a model's own training form computes.
#include <cmath>
#include <numbers>

#include "frontend/onnx/importer/Importer.h"
#include "ir/Train/Philox.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Numbers of one node, in [0, 1) or normal with deviation 1. Counter-based, so that they do not depend on the order in
// which nodes are evaluated.
Tensor randomNumbers(Emitter& e, ArrayRef<int64_t> shape, bool normal, uint64_t seed, uint32_t node) {
  auto type = RankedTensorType::get(shape, e.ops().getF32Type());
  train::Tensor values = train::Tensor::zeros(type);
  for (size_t i = 0; i < values.f.size(); ++i) {
    std::array<uint32_t, 4> words = train::philox(seed, i, node, 0);
    // 53 bits a number, and one that is not 0 for the logarithm.
    double a = double((uint64_t(words[0]) << 32 | words[1]) >> 11) * 0x1p-53;
    double b = double((uint64_t(words[2]) << 32 | words[3]) >> 11) * 0x1p-53;
    values.f[i] = normal ? std::sqrt(-2 * std::log(1 - a)) * std::cos(2 * std::numbers::pi * b) : a;
  }
  return Constant::fromTensor(values);
}

// RandomNormal, RandomUniform and their forms that take the shape of a tensor; nothing if the node is not one of them.
std::optional<LogicalResult> random(Node& n, uint32_t number) {
  StringRef op = n.proto.op_type();
  bool normal = op.consume_front("RandomNormal");
  if (!normal && !op.consume_front("RandomUniform")) return std::nullopt;
  Emitter& e = n.emit;
  Shape shape;
  int64_t dataType = n.integer("dtype", onnx::TensorProto::FLOAT);
  if (op == "Like") {
    if (!n.input(0)) return n.error() << "input 0 is missing";
    shape.assign(n.input(0).shape().begin(), n.input(0).shape().end());
  } else if (auto given = n.integers("shape")) {
    shape = *given;
  }
  Type element =
      op == "Like" && !n.has("dtype") ? n.input(0).elementType() : elementType(e.context(), int32_t(dataType));
  auto count = elementCount(shape);
  if (!isa_and_nonnull<FloatType>(element) || !count || *count > kMaxFolded)
    return n.error() << "makes a tensor of an unsupported type or size; `sheaf init` makes weights of any size";
  float seed = float(n.number("seed", 0));
  uint32_t bits;
  std::memcpy(&bits, &seed, sizeof bits);
  // Nodes with the same seed give the same numbers; those without one do not.
  Tensor x = randomNumbers(e, shape, normal, bits, n.has("seed") ? 0 : number + 1);
  double scale = normal ? n.number("scale", 1) : n.number("high", 1) - n.number("low", 0);
  double shift = normal ? n.number("mean", 0) : n.number("low", 0);
  x = e.scalar<train::AddOp>(e.scalar<train::MulOp>(x, scale), shift);
  return n.set(0, e.cast(x, element));
}

}  // namespace

LogicalResult runInitialization(Importer& importer) {
  uint32_t number = 0;
  for (const onnx::TrainingInfoProto& info : importer.model.proto().training_info()) {
    Scope scope;
    scope.root = true;  // it may read initializers
    for (const onnx::TensorProto& tensor : info.initialization().initializer()) {
      importer.emit.enter(importer.model.location(), "training_info: initialization");
      Tensor constant = constantTensor(importer.emit, importer.model, tensor);
      if (!constant) return failure();
      scope.values[tensor.name()] = GraphValue{constant, std::nullopt};
    }
    for (const onnx::NodeProto& node : info.initialization().node()) {
      ++number;
      Node view(importer, scope, node, importer.model.opset(node.domain()));
      importer.emit.enter(importer.model.location(), "training_info: initialization node '" + node.name() + "'");
      for (const std::string& name : node.input()) {
        GraphValue* value = name.empty() ? nullptr : importer.lookup(name, scope, &node);
        if (!name.empty() && !value) return failure();
        view.operands.push_back(value ? *value : GraphValue());
      }
      if (auto made = random(view, number)) {
        if (failed(*made)) return failure();
      } else if (failed(importer.importNode(node, scope, number))) {
        return failure();
      }
    }
    for (const onnx::StringStringEntryProto& entry : info.initialization_binding()) {
      importer.emit.enter(importer.model.location(), "training_info: initialization_binding of '" + entry.key() + "'");
      const onnx::TensorProto* tensor = importer.initializer(entry.key());
      auto value = scope.values.find(entry.value());
      if (!tensor) return importer.emit.error() << "there is no initializer of that name";
      if (value == scope.values.end())
        return importer.emit.error() << "the graph does not define '" << entry.value() << "'";
      const Tensor& initial = value->second.tensor;
      if (!initial || !initial.constant())
        return importer.emit.error() << "its value is not known, or is too large, while compiling";
      Shape shape(tensor->dims().begin(), tensor->dims().end());
      if (initial.shape() != ArrayRef<int64_t>(shape) ||
          initial.elementType() != elementType(importer.builder.getContext(), tensor->data_type()))
        return importer.emit.error() << "its value is a " << initial.type() << ", not of the initializer's type";
      importer.setInitial(entry.key(), initial);
    }
  }
  return success();
}

}  // namespace sheaf::frontend
