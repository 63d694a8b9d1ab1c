#include "frontend/onnx/importer/Utf8.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"
#include "mlir/IR/Diagnostics.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Every method returns true if all texts are UTF-8. Graphs are nested only as deep as protobuf parses them.
class Texts {
 public:
  explicit Texts(Location location) : location(location) {}

  bool check(const onnx::ModelProto& model) {
    return isText("producer", model.producer_name()) && isText("producer's version", model.producer_version()) &&
           isText("domain", model.domain()) && isText("documentation", model.doc_string()) &&
           check(model.opset_import()) && check(model.metadata_props()) && check(model.functions()) &&
           check(model.graph()) && llvm::all_of(model.training_info(), [&](const onnx::TrainingInfoProto& training) {
             return check(training.initialization()) && check(training.algorithm()) &&
                    check(training.initialization_binding()) && check(training.update_binding());
           });
  }

 private:
  template <typename T>
  bool check(const google::protobuf::RepeatedPtrField<T>& list) {
    return llvm::all_of(list, [&](const T& item) { return check(item); });
  }
  bool check(const onnx::OperatorSetIdProto& import) { return isText("domain of an operator set", import.domain()); }
  bool check(const onnx::StringStringEntryProto& entry) {
    return isText("key of metadata", entry.key()) &&
           isText("metadata '" + llvm::json::fixUTF8(entry.key()) + "'", entry.value());
  }
  bool check(const onnx::TensorProto& tensor) {
    return isText("name of a tensor", tensor.name()) && isText("documentation of a tensor", tensor.doc_string()) &&
           check(tensor.external_data()) && check(tensor.metadata_props());
  }
  bool check(const onnx::SparseTensorProto& tensor) { return check(tensor.values()) && check(tensor.indices()); }
  bool check(const onnx::TypeProto& type) {
    if (!isText("denotation of a type", type.denotation())) return false;
    if (type.has_sequence_type()) return check(type.sequence_type().elem_type());
    if (type.has_optional_type()) return check(type.optional_type().elem_type());
    if (type.has_map_type()) return check(type.map_type().value_type());
    return llvm::all_of(type.tensor_type().shape().dim(), [&](const auto& dim) {
      return isText("name of a dimension", dim.dim_param()) && isText("denotation of a dimension", dim.denotation());
    });
  }
  bool check(const onnx::ValueInfoProto& value) {
    return isText("name of a value", value.name()) && isText("documentation of a value", value.doc_string()) &&
           check(value.type()) && check(value.metadata_props());
  }
  bool check(const onnx::TensorAnnotation& annotation) {
    return isText("name of a quantized tensor", annotation.tensor_name()) &&
           check(annotation.quant_parameter_tensor_names());
  }
  // The strings of an attribute may hold any bytes.
  bool check(const onnx::AttributeProto& attribute) {
    return isText("name of an attribute", attribute.name()) &&
           isText("name of an attribute of a function", attribute.ref_attr_name()) &&
           isText("documentation of an attribute", attribute.doc_string()) &&
           (!attribute.has_t() || check(attribute.t())) && (!attribute.has_g() || check(attribute.g())) &&
           (!attribute.has_tp() || check(attribute.tp())) && check(attribute.tensors()) && check(attribute.graphs()) &&
           check(attribute.sparse_tensors()) && check(attribute.type_protos()) &&
           (!attribute.has_sparse_tensor() || check(attribute.sparse_tensor()));
  }
  bool check(const onnx::NodeProto& node) {
    return isText("name of a node", node.name()) && areTexts("input of a node", node.input()) &&
           areTexts("output of a node", node.output()) && isText("operator of a node", node.op_type()) &&
           isText("domain of a node", node.domain()) && isText("overload of a node", node.overload()) &&
           isText("documentation of a node", node.doc_string()) && check(node.attribute()) &&
           check(node.metadata_props());
  }
  bool check(const onnx::GraphProto& graph) {
    return isText("name of a graph", graph.name()) && isText("documentation of a graph", graph.doc_string()) &&
           check(graph.initializer()) && check(graph.sparse_initializer()) && check(graph.input()) &&
           check(graph.node()) && check(graph.output()) && check(graph.value_info()) &&
           check(graph.quantization_annotation()) && check(graph.metadata_props());
  }
  bool check(const onnx::FunctionProto& function) {
    return isText("name of a function", function.name()) && isText("domain of a function", function.domain()) &&
           isText("overload of a function", function.overload()) &&
           isText("documentation of a function", function.doc_string()) &&
           areTexts("input of a function", function.input()) && areTexts("output of a function", function.output()) &&
           areTexts("attribute of a function", function.attribute()) && check(function.attribute_proto()) &&
           check(function.node()) && check(function.opset_import()) && check(function.value_info()) &&
           check(function.metadata_props());
  }

  template <typename List>
  bool areTexts(const char* what, const List& texts) {
    return llvm::all_of(texts, [&](const std::string& text) { return isText(what, text); });
  }
  bool isText(const Twine& what, StringRef text) {
    if (llvm::json::isUTF8(text)) return true;
    constexpr size_t kShown = 200;
    emitError(location) << "the " << what << " is not UTF-8: '" << text.take_front(kShown)
                        << "'; change it where the model is made, and export it again";
    return false;
  }

  Location location;
};

}  // namespace

LogicalResult checkUtf8(Location location, const onnx::ModelProto& model) {
  return success(Texts(location).check(model));
}

}  // namespace sheaf::frontend
