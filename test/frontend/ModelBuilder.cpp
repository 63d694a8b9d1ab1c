#include "test/frontend/ModelBuilder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "ir/Train/TrainDialect.h"
#include "llvm/Support/raw_ostream.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Verifier.h"
#include "test/TemporaryFolder.h"

namespace sheaf::test {
namespace {

void setType(onnx::ValueInfoProto& value, const std::string& name, const Dims& dims, int type) {
  value.set_name(name);
  auto* tensor = value.mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (const auto& dim : dims) {
    auto* d = tensor->mutable_shape()->add_dim();
    if (std::holds_alternative<int64_t>(dim))
      d->set_dim_value(std::get<int64_t>(dim));
    else
      d->set_dim_param(std::get<std::string>(dim));
  }
}

onnx::AttributeProto& attribute(onnx::NodeProto& node, const std::string& name,
                                onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto& a = *node.add_attribute();
  a.set_name(name);
  a.set_type(type);
  return a;
}

}  // namespace

ModelBuilder::ModelBuilder(int64_t opset) {
  model.set_ir_version(10);
  auto* import = model.add_opset_import();
  import->set_version(opset);
  graph().set_name("test");
}

onnx::NodeProto& ModelBuilder::node(const std::string& op, Names inputs, Names outputs, const std::string& domain) {
  onnx::NodeProto& n = *graph().add_node();
  n.set_op_type(op);
  n.set_domain(domain);
  for (const std::string& name : inputs) n.add_input(name);
  for (const std::string& name : outputs) n.add_output(name);
  return n;
}

ModelBuilder& ModelBuilder::input(const std::string& name, Dims dims, int type) {
  setType(*graph().add_input(), name, dims, type);
  return *this;
}

ModelBuilder& ModelBuilder::output(const std::string& name, Dims dims, int type) {
  setType(*graph().add_output(), name, dims, type);
  return *this;
}

onnx::TensorProto floatTensor(const std::string& name, std::vector<int64_t> dims, std::vector<float> values) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t d : dims) tensor.add_dims(d);
  tensor.set_raw_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

onnx::TensorProto& ModelBuilder::floats(const std::string& name, std::vector<int64_t> dims, std::vector<float> values) {
  return *graph().add_initializer() = floatTensor(name, dims, values);
}

onnx::TensorProto& ModelBuilder::integers(const std::string& name, std::vector<int64_t> dims,
                                          std::vector<int64_t> values) {
  onnx::TensorProto& tensor = *graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::INT64);
  for (int64_t d : dims) tensor.add_dims(d);
  for (int64_t v : values) tensor.add_int64_data(v);
  return tensor;
}

ModelBuilder ModelBuilder::unary(const std::string& op, int64_t opset, std::vector<int64_t> dims,
                                 std::vector<float> values, Names more) {
  ModelBuilder m(opset);
  m.floats("w", dims, values);
  Names inputs{"w"};
  inputs.insert(inputs.end(), more.begin(), more.end());
  m.input("x", {"N"}).output("loss", {});
  m.node(op, inputs, {"y"});
  setInteger(m.node("ReduceSum", {"y"}, {"sum"}), "keepdims", 0);
  setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
  m.node("Add", {"sum", "zero"}, {"loss"});
  return m;
}

const std::string& modelFolder() {
  static const testing::TemporaryFolder folder;
  return folder.path();
}

std::string ModelBuilder::save() const {
  static int number = 0;
  std::string path = modelFolder() + "/" + std::to_string(number++) + ".onnx";
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  return path;
}

void setInteger(onnx::NodeProto& node, const std::string& name, int64_t value) {
  attribute(node, name, onnx::AttributeProto::INT).set_i(value);
}
void setFloat(onnx::NodeProto& node, const std::string& name, float value) {
  attribute(node, name, onnx::AttributeProto::FLOAT).set_f(value);
}
void setString(onnx::NodeProto& node, const std::string& name, const std::string& value) {
  attribute(node, name, onnx::AttributeProto::STRING).set_s(value);
}
void setIntegers(onnx::NodeProto& node, const std::string& name, std::vector<int64_t> values) {
  auto& a = attribute(node, name, onnx::AttributeProto::INTS);
  for (int64_t v : values) a.add_ints(v);
}
void setStrings(onnx::NodeProto& node, const std::string& name, Names values) {
  auto& a = attribute(node, name, onnx::AttributeProto::STRINGS);
  for (const std::string& v : values) a.add_strings(v);
}
void setMetadata(google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& entries, const std::string& key,
                 const std::string& value) {
  auto* entry = entries.Add();
  entry->set_key(key);
  entry->set_value(value);
}

std::string Imported::decisions() {
  std::string text;
  if (module)
    for (mlir::Attribute a : module->getOperation()->getAttrOfType<mlir::ArrayAttr>("train.decisions"))
      text += mlir::cast<mlir::StringAttr>(a).str() + "\n";
  return text;
}

int Imported::count(const std::string& op) {
  int n = 0;
  if (module)
    module->getOperation()->walk([&](mlir::Operation* o) { n += o->getName().getStringRef() == "train." + op; });
  return n;
}

Imported import(const std::string& path, frontend::ImportOptions options) {
  Imported result;
  result.context = std::make_unique<mlir::MLIRContext>(mlir::MLIRContext::Threading::DISABLED);
  mlir::ScopedDiagnosticHandler handler(result.context.get(), [&](mlir::Diagnostic& diagnostic) {
    auto& list = diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error ? result.errors : result.warnings;
    list.push_back(diagnostic.str());
  });
  result.module = frontend::importOnnx(*result.context, path, options);
  EXPECT_EQ(result.errors.size(), result.module ? 0u : 1u) << path;
  if (result.module) {
    EXPECT_TRUE(mlir::succeeded(mlir::verify(*result.module)));
  }
  for (const std::string& error : result.errors) {
    EXPECT_LE(std::count(error.begin(), error.end(), '\n'), 11);
  }
  return result;
}

Imported import(const ModelBuilder& model, frontend::ImportOptions options) {
  std::string path = model.save();
  Imported result = import(path, options);
  unlink(path.c_str());
  return result;
}

std::string errorOf(const ModelBuilder& model, frontend::ImportOptions options) {
  const Imported imported = import(model, std::move(options));
  return imported.errors.empty() ? "" : imported.errors.front();
}

frontend::ImportOptions withBatch(int64_t batch, int64_t ranks) {
  frontend::ImportOptions options;
  options.batch = batch;
  options.ranks = ranks;
  return options;
}

std::string call(const std::string& name, const std::string& function, const std::string& arguments) {
  return "%" + name + " : [num_users=1] = call_function[target=torch.ops.aten." + function + "](args = (" + arguments +
         "), kwargs = {})";
}

void express(onnx::NodeProto& node, const std::string& expression) {
  setMetadata(*node.mutable_metadata_props(), kExpression, expression);
}

void describe(ModelBuilder& model, const std::string& value, const std::string& key, const std::string& text) {
  onnx::ValueInfoProto& info = *model.graph().add_value_info();
  info.set_name(value);
  setMetadata(*info.mutable_metadata_props(), key, text);
}

ModelBuilder chain(const std::string& op, const std::string& a, const std::string& b) {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  m.node(op, {"x", a}, {"y"});
  m.node(op, {"y", b}, {"z"});
  setInteger(m.node("ReduceMean", {"z"}, {"loss"}), "keepdims", 0);
  return m;
}

}  // namespace sheaf::test
