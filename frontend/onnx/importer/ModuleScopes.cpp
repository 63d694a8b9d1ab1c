#include "frontend/onnx/importer/ModuleScopes.h"

#include <memory>
#include <vector>

#include "frontend/onnx/importer/TorchExport.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/MLIRContext.h"

using namespace llvm;

namespace sheaf::frontend {
namespace {

// The last module of the metadata, which names the op itself last.
std::string scopeOfMetadata(const onnx::NodeProto& node) {
  if (StringRef module = moduleOf(node); !module.empty()) return module.str();
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
