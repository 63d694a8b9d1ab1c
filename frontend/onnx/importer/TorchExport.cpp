#include "frontend/onnx/importer/TorchExport.h"

#include <cctype>

#include "llvm/ADT/StringExtras.h"

using namespace mlir;

namespace sheaf::frontend {

SmallVector<StringRef> pythonList(StringRef text) {
  SmallVector<StringRef> items;
  while (true) {
    size_t begin = text.find_first_of("'\"");
    if (begin == StringRef::npos) return items;
    size_t end = text.find(text[begin], begin + 1);
    if (end == StringRef::npos) return items;
    items.push_back(text.slice(begin + 1, end));
    text = text.drop_front(end + 1);
  }
}

StringRef moduleOf(const onnx::NodeProto& node) {
  SmallVector<StringRef> scopes = pythonList(Model::metadata(node.metadata_props(), "pkg.torch.onnx.name_scopes"));
  return scopes.size() < 2 ? StringRef() : scopes[scopes.size() - 2];  // the last one is the node itself
}

StringRef functionOf(StringRef value) {
  return value.rtrim("0123456789").rtrim('_');
}

StringRef resultOf(StringRef expression) {
  return expression.consume_front("%") ? expression.take_until([](char c) { return c == ' '; }) : StringRef();
}

StringRef targetOf(StringRef expression) {
  return expression.split("[target=torch.ops.").second.split(']').first;
}

SmallVector<StringRef> argumentsOf(StringRef expression) {
  SmallVector<StringRef> names;
  for (StringRef rest = expression.split("](args = ").second; rest.contains('%');) {
    rest = rest.split('%').second;
    const StringRef name =
        rest.take_while([](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
    if (!name.starts_with("sym_")) names.push_back(name);  // a size is not a tensor
    rest = rest.drop_front(name.size());
  }
  return names;
}

bool hasOperandsInOrder(StringRef target) {
  target.consume_front("aten.");
  return target.contains("batch_norm") ||
         llvm::is_contained({"add",      "sub",    "mul",        "div",   "pow",    "max",    "min",    "maximum",
                             "minimum",  "matmul", "mm",         "bmm",   "mv",     "dot",    "cat",    "where",
                             "mse_loss", "linear", "layer_norm", "prelu", "conv1d", "conv2d", "conv3d", "convolution"},
                            target.split('.').first);
}

bool isViewOrCopy(StringRef function) {
  return llvm::is_contained(
      {"view",    "reshape",   "_unsafe_view", "expand",    "clone",   "contiguous", "alias",    "unsqueeze",
       "squeeze", "permute",   "transpose",    "t",         "slice",   "select",     "_to_copy", "to",
       "dropout", "detach",    "detach_copy",  "getitem",   "split",   "chunk",      "unbind",   "type_as",
       "flatten", "expand_as", "view_as",      "unflatten", "numpy_T", "movedim"},
      function);
}

bool namesMember(StringRef name, bool byPyTorch) {
  if (name.find_first_of(":/") != StringRef::npos) return false;
  if (name.contains('.')) return true;
  constexpr StringRef kConstants[] = {
      "val_",   "_val_",  "const",     "_const",   "_tensor_constant", "_param_constant",
      "lifted", "scalar", "_inlined_", "ortshared"};
  return byPyTorch && !name.empty() && !llvm::isDigit(name[0]) &&
         llvm::none_of(kConstants, [&](StringRef prefix) { return name.starts_with_insensitive(prefix); });
}

bool isFactoryResult(StringRef value) {
  StringRef op = functionOf(value);
  return op.ends_with("_window") ||
         llvm::is_contained({"arange",     "linspace",  "logspace", "full",          "zeros",           "ones",
                             "empty",      "eye",       "tensor",   "scalar_tensor", "lift_fresh_copy", "full_like",
                             "zeros_like", "ones_like", "tril",     "triu",          "tril_indices",    "triu_indices",
                             "threshold",  "const"},
                            op);
}

GraphSignature::GraphSignature(const Model& model) {
  SmallVector<StringRef> lines;
  Model::metadata(model.graph().metadata_props(), "pkg.torch.export.ExportedProgram.graph_signature")
      .split(lines, '\n');
  for (StringRef line : lines) {
    auto [placeholder, rest] = line.split(": ");
    auto [kind, target] = rest.split(" target='");
    if (kind.starts_with("USER_OUTPUT")) results.push_back(placeholder.str());
    if (kind != "PARAMETER" && kind != "BUFFER" && kind != "CONSTANT_TENSOR") continue;
    const StringRef name = target.split('\'').first;
    placeholders.try_emplace(placeholder, tensors.size());
    names.try_emplace(name, tensors.size());
    tensors.push_back({placeholder.str(), name.str(), kind == "PARAMETER"});
  }
}

const GraphSignature::Tensor* GraphSignature::byPlaceholder(StringRef placeholder) const {
  auto found = placeholders.find(placeholder);
  return found == placeholders.end() ? nullptr : &tensors[found->second];
}

const GraphSignature::Tensor* GraphSignature::byName(StringRef name) const {
  auto found = names.find(name);
  return found == names.end() ? nullptr : &tensors[found->second];
}

std::vector<std::string> removedFxValues(const Model& model, ArrayRef<const onnx::NodeProto*> nodes) {
  llvm::StringSet<> known;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) known.insert(tensor.name());
  for (const auto* list : {&model.graph().input(), &model.graph().value_info()})
    for (const onnx::ValueInfoProto& value : *list) {
      known.insert(value.name());
      known.insert(Model::metadata(value.metadata_props(), kPlaceholder));
    }
  for (const onnx::NodeProto* node : nodes) {
    known.insert(resultOf(expressionOf(*node)));
    for (const std::string& output : node->output()) known.insert(output);
  }
  // "p_w", "b_m_grid", "c_lifted_tensor_0": what torch.export calls parameters, buffers and constants.
  auto isOfModule = [](StringRef name) {
    return name.size() > 2 && name[1] == '_' && StringRef("pbc").contains(name[0]);
  };
  std::vector<std::string> missing;
  auto add = [&](StringRef name) {
    if (!isOfModule(name) && !isViewOrCopy(functionOf(name)) && known.insert(name).second)
      missing.push_back(name.str());
  };
  for (const onnx::NodeProto* node : nodes)
    for (StringRef name : argumentsOf(expressionOf(*node))) add(name);
  const GraphSignature signature(model);
  for (const std::string& name : signature.outputs()) add(name);
  return missing;
}

}  // namespace sheaf::frontend
