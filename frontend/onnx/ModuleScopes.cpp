#include "frontend/onnx/ModuleScopes.h"

#include <memory>
#include <vector>

#include "frontend/onnx/Model.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/MLIRContext.h"

using namespace llvm;

namespace sheaf::frontend {
namespace {

// The names in "['', 'm', 'm.transformer', 'view']": modules from the outermost on, and the op.
std::vector<std::string> quotedNames(StringRef list) {
  std::vector<std::string> names;
  while (true) {
    const size_t begin = list.find_first_of("'\"");
    if (begin == StringRef::npos) return names;
    const size_t end = list.find(list[begin], begin + 1);
    if (end == StringRef::npos) return names;
    names.push_back(list.slice(begin + 1, end).str());
    list = list.drop_front(end + 1);
  }
}

// The last module of the metadata, which names the op itself last.
std::string scopeOfMetadata(const onnx::NodeProto& node) {
  const StringRef scopes = Model::metadata(node.metadata_props(), "pkg.torch.onnx.name_scopes");
  if (std::vector<std::string> names = quotedNames(scopes); names.size() >= 2) return names[names.size() - 2];
  // ": Model/m.transformer: GPT2Model/view: aten.view.default"
  SmallVector<StringRef> parts;
  Model::metadata(node.metadata_props(), "namespace").split(parts, '/');
  return parts.size() < 2 ? "" : parts[parts.size() - 2].split(':').first.trim().str();
}

// "/h.3/attn/MatMul": each part is a module within the one before, the last one the op.
std::string scopeOfPath(StringRef name) {
  if (!name.consume_front("/")) return "";
  const size_t last = name.rfind('/');
  if (last == StringRef::npos) return "";
  std::string scope = name.take_front(last).str();
  for (char& letter : scope)
    if (letter == '/') letter = '.';
  return scope;
}

}  // namespace

std::map<std::string, std::string> moduleScopes(StringRef path) {
  mlir::MLIRContext context;
  mlir::ScopedDiagnosticHandler quiet(&context, [](mlir::Diagnostic&) { return mlir::success(); });
  std::map<std::string, std::string> scopes;
  const std::unique_ptr<Model> model = Model::load(context, path);
  if (!model) return scopes;
  auto add = [&](const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
    for (const onnx::NodeProto& node : nodes) {
      const std::string& name = node.name().empty() && node.output_size() ? node.output(0) : node.name();
      std::string scope = scopeOfMetadata(node);
      if (scope.empty()) scope = scopeOfPath(name);
      if (!name.empty() && !scope.empty()) scopes.try_emplace(name, std::move(scope));
    }
  };
  add(model->graph().node());
  for (const onnx::FunctionProto& function : model->proto().functions()) add(function.node());
  return scopes;
}

}  // namespace sheaf::frontend
