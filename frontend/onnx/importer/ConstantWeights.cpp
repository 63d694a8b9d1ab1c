// Weights in Constant nodes, as Paddle2ONNX writes them, become initializers: then they have names and places in files
// like those of other exporters. Back to nodes for `sheaf export`.
#include "frontend/onnx/importer/OperandRoles.h"
#include "frontend/onnx/importer/TorchExport.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// The first attribute `value`, or null.
template <typename Node>
auto* valueAttribute(Node& node) {
  const auto found = llvm::find_if(node.attribute(), [](auto& attribute) { return attribute.name() == "value"; });
  if constexpr (std::is_const_v<Node>)
    return found == node.attribute().end() ? nullptr : &*found;
  else
    return found == node.attribute().end() ? nullptr : node.mutable_attribute(int(found - node.attribute().begin()));
}

// The tensor of floats that a Constant node holds; null if it has another value, or one element.
const onnx::TensorProto* valueOf(const onnx::NodeProto& node) {
  if (node.op_type() != "Constant" || !isDefaultDomain(node.domain()) || node.output_size() != 1) return nullptr;
  const onnx::AttributeProto* value = valueAttribute(node);
  if (!value || !value->has_t() || !isFloatType(value->t().data_type())) return nullptr;
  const auto count = elementCount(ArrayRef<int64_t>(value->t().dims().data(), value->t().dims().size()));
  return count.value_or(0) > 1 ? &value->t() : nullptr;
}

int64_t dimensionsOf(const onnx::TensorProto& tensor) {
  return llvm::count_if(tensor.dims(), [](int64_t size) { return size != 1; });
}

}  // namespace

LogicalResult Model::hoistWeights() {
  onnx::GraphProto& graph = *model.mutable_graph();
  if (llvm::none_of(graph.node(), valueOf) || model.training_info_size() || trainingArtifacts) return success();
  // torch.export says what the parameters are.
  for (const onnx::ValueInfoProto& value : graph.value_info())
    if (!metadata(value.metadata_props(), kSignatureKind).empty()) return success();

  std::vector<const onnx::NodeProto*> nodes;
  for (const onnx::NodeProto& node : graph.node()) nodes.push_back(&node);
  const ValueUses uses(*this, nodes);
  const bool elsewhere = llvm::any_of(graph.initializer(), [&](const onnx::TensorProto& tensor) {
    return isFloatType(tensor.data_type()) && uses.summary(tensor.name(), dimensionsOf(tensor)).weight;
  });
  // TorchScript's exporter puts parameters into initializers; its constants stand in the code.
  if (elsewhere && model.producer_name() == "pytorch") return success();

  std::vector<int> chosen;
  bool anyWeight = false;
  for (auto [i, node] : llvm::enumerate(graph.node()))
    if (const onnx::TensorProto* tensor = valueOf(node)) {
      const int64_t dimensions = dimensionsOf(*tensor);
      const ValueUses::Summary used = uses.summary(node.output(0), dimensions);
      // Biases and scales are vectors. A mask, or a table of positions, is not.
      if (!used.weight && (elsewhere || !used.value || dimensions > 1)) continue;
      anyWeight |= used.weight;
      chosen.push_back(int(i));
    }
  if (!anyWeight) return success();

  std::vector<RawSpan> places;
  const bool located =
      !file.bytes().empty() && locateConstants(contents(), places) && places.size() == size_t(graph.node_size());
  google::protobuf::RepeatedPtrField<onnx::NodeProto> kept;
  for (int i = 0; i < graph.node_size(); ++i) {
    onnx::NodeProto& node = *graph.mutable_node(i);
    if (!llvm::binary_search(chosen, i)) {
      *kept.Add() = std::move(node);
      continue;
    }
    onnx::AttributeProto& attribute = *valueAttribute(node);
    onnx::TensorProto& tensor = *graph.add_initializer();
    tensor.Swap(attribute.mutable_t());
    hoisted.push_back({i, {}, tensor.name()});
    tensor.set_name(node.output(0));
    if (located && tensor.has_raw_data() && places[i].length == int64_t(tensor.raw_data().size())) {
      spanOf[&tensor] = unsigned(spans.size());
      spans.push_back(places[i]);
      tensor.clear_raw_data();
    }
    hoisted.back().node.Swap(&node);
    if (failed(checkTensor(tensor))) return failure();
  }
  graph.mutable_node()->Swap(&kept);
  return success();
}

void Model::restoreConstants(onnx::GraphProto& graph) const {
  if (hoisted.empty()) return;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
  google::protobuf::RepeatedPtrField<onnx::TensorProto> others;
  llvm::StringMap<onnx::TensorProto*> values;
  for (const Hoisted& constant : hoisted) values[constant.node.output(0)] = nullptr;
  for (onnx::TensorProto& tensor : *graph.mutable_initializer())
    if (auto it = values.find(tensor.name()); it != values.end())
      it->second = &tensor;
    else
      *others.Add() = std::move(tensor);
  auto next = hoisted.begin();
  int from = 0;
  while (next != hoisted.end() || from < graph.node_size()) {
    if (next == hoisted.end() || next->index > nodes.size()) {
      *nodes.Add() = std::move(*graph.mutable_node(from++));
      continue;
    }
    onnx::NodeProto& node = *nodes.Add() = next->node;
    onnx::TensorProto& tensor = *valueAttribute(node)->mutable_t();
    tensor.Swap(values[node.output(0)]);
    tensor.set_name(next->tensorName);
    ++next;
  }
  graph.mutable_node()->Swap(&nodes);
  graph.mutable_initializer()->Swap(&others);
}

std::vector<std::string> Model::constantWeights() const {
  std::vector<std::string> names;
  for (const Hoisted& constant : hoisted) names.push_back(constant.node.output(0));
  return names;
}

}  // namespace sheaf::frontend
