// Reads what PyTorch's exporters write into a model besides the graph: names, kinds and expressions of torch.export.
#pragma once

#include "frontend/onnx/importer/Model.h"
#include "llvm/ADT/StringSet.h"

namespace sheaf::frontend {

// Metadata of values: kind and persistence of an input of torch.export, the name that it has in expressions, and the
// values that the exporter's optimizer computed a constant from.
constexpr llvm::StringRef kSignatureKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr llvm::StringRef kPersistent = "pkg.torch.export.graph_signature.InputSpec.persistent";
constexpr llvm::StringRef kPlaceholder = "pkg.torch.onnx.original_node_name";
constexpr llvm::StringRef kFoldedFrom = "pkg.onnxscript.optimizer.folded_from";

// The items of a list that Python printed: ['a', 'b'].
llvm::SmallVector<llvm::StringRef> pythonList(llvm::StringRef text);

// The expression of torch.export that a node was made from; empty if unknown.
inline llvm::StringRef expressionOf(const onnx::NodeProto& node) {
  return Model::metadata(node.metadata_props(), kFxNode);
}
// The module whose forward a node belongs to, as torch names it ("m.h.0.ln_1"); empty if unknown.
llvm::StringRef moduleOf(const onnx::NodeProto& node);

// The function that torch.export calls a value after: "linear" of "linear_1".
llvm::StringRef functionOf(llvm::StringRef value);
// The name of an expression's value: "linear_1" of "%linear_1 : [num_users=1] = call_function[...](...)".
llvm::StringRef resultOf(llvm::StringRef expression);
// The function that an expression calls: "aten.add.Tensor".
llvm::StringRef targetOf(llvm::StringRef expression);
// The tensors that an expression takes, in their order: "%a" of "... = call_function[...](args = (%a, 1), ...)".
llvm::SmallVector<llvm::StringRef> argumentsOf(llvm::StringRef expression);
// True if the operands of the one node that reads them are a function's arguments in their order.
bool hasOperandsInOrder(llvm::StringRef target);
// True for functions whose results have the elements of their operand: views and copies. The optimizer removes them,
// and merges none with a value of other elements.
bool isViewOrCopy(llvm::StringRef function);

// True for names of a module's members, "m.logit_scale"; false for an exporter's, "onnx::Mul_7" or "/m/Constant".
// A member of the outermost module has no dot: "logit_scale". Only of PyTorch's exports is it known that they call
// nothing else by a plain name; their constants are "12", "onnx::Mul_12", or begin as listed in the definition.
bool namesMember(llvm::StringRef name, bool byPyTorch);
// True for values that torch.export names after an operator that makes tensors of numbers alone: "arange_1",
// "threshold".
bool isFactoryResult(llvm::StringRef value);

// The tensors of the module that was exported, in the graph or not. Exporters before torch 2.6 do not list them.
class GraphSignature {
 public:
  struct Tensor {
    std::string placeholder, name;  // in expressions and in the module: "p_a_weight", "a.weight"
    bool parameter;                 // else a buffer or a constant
  };
  explicit GraphSignature(const Model& model);

  llvm::ArrayRef<Tensor> all() const { return tensors; }
  llvm::ArrayRef<std::string> outputs() const { return results; }
  // Null if there is no such tensor.
  const Tensor* byPlaceholder(llvm::StringRef placeholder) const;
  const Tensor* byName(llvm::StringRef name) const;

 private:
  std::vector<Tensor> tensors;
  std::vector<std::string> results;             // names of values
  llvm::StringMap<size_t> placeholders, names;  // give the index in `tensors`
};

// Values that expressions name and the graph lacks: the optimizer has merged them with others, or removed them. Views
// and copies are left out.
std::vector<std::string> removedFxValues(const Model& model, llvm::ArrayRef<const onnx::NodeProto*> nodes);

}  // namespace sheaf::frontend
