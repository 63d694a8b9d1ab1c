// Small ONNX models for tests, written field by field.
#pragma once

#include <initializer_list>
#include <string>
#include <variant>
#include <vector>

#include "frontend/onnx/importer/Import.h"
#include "mlir/IR/MLIRContext.h"
#include "onnx/onnx-ml.pb.h"

namespace sheaf::test {

using Names = std::vector<std::string>;
using Dims = std::vector<std::variant<int64_t, std::string>>;  // a size, or a symbol's name

class ModelBuilder {
 public:
  explicit ModelBuilder(int64_t opset = 20);

  onnx::GraphProto& graph() { return *model.mutable_graph(); }
  onnx::NodeProto& node(const std::string& op, Names inputs, Names outputs, const std::string& domain = "");
  ModelBuilder& input(const std::string& name, Dims dims, int type = onnx::TensorProto::FLOAT);
  ModelBuilder& output(const std::string& name, Dims dims, int type = onnx::TensorProto::FLOAT);
  onnx::TensorProto& floats(const std::string& name, std::vector<int64_t> dims, std::vector<float> values);
  onnx::TensorProto& integers(const std::string& name, std::vector<int64_t> dims, std::vector<int64_t> values);

  // y = op(x [batch, columns], ...) with a parameter `w` of the given shape and values; loss = mean(y).
  static ModelBuilder unary(const std::string& op, int64_t opset, std::vector<int64_t> dims, std::vector<float> values,
                            Names more = {});

  std::string save() const;  // to a file of its own in modelFolder()
  onnx::ModelProto model;
};

// The folder for models of this process, which goes with it.
const std::string& modelFolder();

onnx::TensorProto floatTensor(const std::string& name, std::vector<int64_t> dims, std::vector<float> values);
void setInteger(onnx::NodeProto& node, const std::string& name, int64_t value);
void setFloat(onnx::NodeProto& node, const std::string& name, float value);
void setString(onnx::NodeProto& node, const std::string& name, const std::string& value);
void setIntegers(onnx::NodeProto& node, const std::string& name, std::vector<int64_t> values);
void setStrings(onnx::NodeProto& node, const std::string& name, Names values);
void setMetadata(google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& entries, const std::string& key,
                 const std::string& value);

// What PyTorch's exporter and its optimizer write about a value or a node.
inline constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
inline constexpr const char* kFoldedFrom = "pkg.onnxscript.optimizer.folded_from";
inline constexpr const char* kScopes = "pkg.torch.onnx.name_scopes";
inline constexpr const char* kPlaceholder = "pkg.torch.onnx.original_node_name";
inline constexpr const char* kExpression = "pkg.torch.onnx.fx_node";
// The expression "%name : ... = call_function[target=torch.ops.aten.function](args = (arguments), kwargs = {})".
std::string call(const std::string& name, const std::string& function, const std::string& arguments);
void express(onnx::NodeProto& node, const std::string& expression);
void describe(ModelBuilder& model, const std::string& value, const std::string& key, const std::string& text);

// loss = mean(op(op(x, a), b)), x [N, 2].
ModelBuilder chain(const std::string& op, const std::string& a, const std::string& b);

// An import and what it said.
struct Imported {
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::vector<std::string> errors, warnings;

  std::string decisions();  // one a line
  int count(const std::string& op);
};
Imported import(const std::string& path, frontend::ImportOptions options = {});
Imported import(const ModelBuilder& model, frontend::ImportOptions options = {});
frontend::ImportOptions withBatch(int64_t batch, int64_t ranks = 1);
// The first error of an import; "" if there is none.
std::string errorOf(const ModelBuilder& model, frontend::ImportOptions options = withBatch(1));

}  // namespace sheaf::test
