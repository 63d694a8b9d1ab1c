// The user's model with trained values: every form in which an exporter may store a parameter.
#include "frontend/onnx/export/Export.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "llvm/ADT/APFloat.h"
#include "test/frontend/ModelBuilder.h"

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

using Values = std::map<std::string, std::vector<float>>;  // in the layout of the plan

// Elements as the type stores them.
std::string stored(const std::vector<float>& values, mlir::FloatType type) {
  std::string bytes;
  for (float v : values) {
    llvm::APFloat number(v);
    bool inexact = false;
    number.convert(type.getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven, &inexact);
    uint64_t bits = number.bitcastToAPInt().getZExtValue();
    bytes.append(reinterpret_cast<const char*>(&bits), type.getWidth() / 8);
  }
  return bytes;
}

struct Exported {
  bool done = false;
  std::string path;
  onnx::ModelProto model;
  std::vector<std::string> errors;

  const onnx::TensorProto* find(const std::string& name) const {
    for (const onnx::TensorProto& tensor : model.graph().initializer())
      if (tensor.name() == name) return &tensor;
    return nullptr;
  }
  std::string bytes(const std::string& name) const {
    const onnx::TensorProto& tensor = *find(name);
    if (tensor.data_location() != onnx::TensorProto::EXTERNAL) return tensor.raw_data();
    std::map<std::string, std::string> entries;
    for (const auto& entry : tensor.external_data()) entries[entry.key()] = entry.value();
    std::ifstream file(std::filesystem::path(path).parent_path() / entries["location"], std::ios::binary);
    std::string result(std::stoul(entries["length"]), '\0');
    file.seekg(std::stol(entries["offset"]));
    file.read(result.data(), std::streamsize(result.size()));
    return result;
  }
  std::vector<float> floats(const std::string& name) const {
    std::string raw = bytes(name);
    std::vector<float> values(raw.size() / sizeof(float));
    std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }
};

Exported exportModel(const std::string& path, const Values& trained, frontend::ExportOptions options = {}) {
  Exported result;
  mlir::MLIRContext context;
  mlir::ScopedDiagnosticHandler handler(&context, [&](mlir::Diagnostic& d) {
    if (d.getSeverity() == mlir::DiagnosticSeverity::Error) result.errors.push_back(d.str());
    return mlir::success();
  });
  frontend::TrainedParameters parameters;
  for (const auto& [name, values] : trained) parameters.names.insert(name);
  parameters.values = [&](llvm::StringRef name, mlir::FloatType type, int64_t count) -> mlir::FailureOr<std::string> {
    const std::vector<float>& values = trained.at(name.str());
    EXPECT_EQ(int64_t(values.size()), count);
    return stored(values, type);
  };
  result.path = path + ".trained.onnx";
  result.done = mlir::succeeded(frontend::exportOnnx(context, path, result.path, options, parameters));
  std::ifstream file(result.path, std::ios::binary);
  EXPECT_EQ(result.done && result.model.ParseFromIstream(&file), result.done);
  return result;
}

Exported exportModel(const ModelBuilder& m, const Values& trained, frontend::ExportOptions options = {}) {
  return exportModel(m.save(), trained, options);
}

TEST(Export, OnlyTrainedValuesChange) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  onnx::TensorProto& b = m.floats("b", {2}, {});
  b.clear_raw_data();
  b.add_float_data(3);
  b.add_float_data(4);
  m.integers("unused", {1}, {7});
  Exported e = exportModel(m, {{"b", {30, 40}}});
  ASSERT_TRUE(e.done);
  EXPECT_THAT(e.floats("a"), ElementsAre(1, 2));
  EXPECT_THAT(e.floats("b"), ElementsAre(30, 40));
  EXPECT_EQ(e.find("b")->float_data_size(), 0);
  // All else is the user's, byte for byte.
  onnx::ModelProto expected = m.model;
  for (onnx::TensorProto& tensor : *expected.mutable_graph()->mutable_initializer())
    if (tensor.name() == "b") {
      tensor.clear_float_data();
      tensor.set_raw_data(e.find("b")->raw_data());
    }
  EXPECT_EQ(e.model.SerializeAsString(), expected.SerializeAsString());
}

TEST(Export, ValuesHaveTheInitializersType) {
  for (int type : {onnx::TensorProto::FLOAT16, onnx::TensorProto::BFLOAT16, onnx::TensorProto::DOUBLE}) {
    ModelBuilder m;
    m.input("x", {"N", 2}, type).output("loss", {}, type);
    onnx::TensorProto& w = m.floats("w", {2}, {});
    w.set_data_type(type);
    w.set_raw_data(std::string(type == onnx::TensorProto::DOUBLE ? 16 : 4, '\0'));
    m.node("Mul", {"x", "w"}, {"y"});
    setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    Exported e = exportModel(m, {{"w", {1.5, -2}}});
    ASSERT_TRUE(e.done);
    mlir::MLIRContext context;
    mlir::FloatType stores = type == onnx::TensorProto::DOUBLE    ? mlir::FloatType(mlir::Float64Type::get(&context))
                             : type == onnx::TensorProto::FLOAT16 ? mlir::FloatType(mlir::Float16Type::get(&context))
                                                                  : mlir::FloatType(mlir::BFloat16Type::get(&context));
    EXPECT_EQ(e.bytes("w"), stored({1.5, -2}, stores));
  }
}

// Embedding and head are one parameter, whose transposition an exporter had folded: both initializers get its values.
TEST(Export, BrokenTieGetsBothLayouts) {
  ModelBuilder m;
  m.input("ids", {"N"}, onnx::TensorProto::INT64).output("loss", {});
  m.floats("m.head.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  m.floats("val_1", {2, 3}, {1, 3, 5, 2, 4, 6});
  describe(m, "m.head.weight", kKind, "PARAMETER");
  describe(m, "val_1", kFoldedFrom, "['m.head.weight']");
  m.node("Gather", {"m.head.weight", "ids"}, {"e"});
  m.node("MatMul", {"e", "val_1"}, {"y"});
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  Exported e = exportModel(m, {{"m.head.weight", {10, 20, 30, 40, 50, 60}}});
  ASSERT_TRUE(e.done);
  EXPECT_THAT(e.floats("m.head.weight"), ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_THAT(e.floats("val_1"), ElementsAre(10, 30, 50, 20, 40, 60));
}

// A folded transposition without its original: the plan has the initializer's layout, and only the name is another.
TEST(Export, FoldedTranspositionKeepsTheInitializersLayout) {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("val_1", {2, 3}, {1, 2, 3, 4, 5, 6});
  m.floats("m.other.weight", {3}, {1, 1, 1});
  describe(m, "m.other.weight", kKind, "PARAMETER");
  describe(m, "val_1", kFoldedFrom, "['m.fc.weight']");
  m.node("MatMul", {"x", "val_1"}, {"h"});
  m.node("Mul", {"h", "m.other.weight"}, {"y"});
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  Exported e = exportModel(m, {{"m.fc.weight", {10, 20, 30, 40, 50, 60}}});
  ASSERT_TRUE(e.done);
  EXPECT_THAT(e.floats("val_1"), ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_THAT(e.floats("m.other.weight"), ElementsAre(1, 1, 1));
}

// Scales that merely started equal are different after training.
TEST(Export, MergedParametersPart) {
  ModelBuilder m = chain("Mul", "m.n1.weight", "m.n1.weight");
  m.floats("m.n1.weight", {2}, {1, 1});
  m.floats("val_1", {1}, {1});
  describe(m, "m.n1.weight", kKind, "PARAMETER");
  describe(m, "val_1", kFoldedFrom, "['val_0']");
  setMetadata(*m.graph().mutable_node(0)->mutable_metadata_props(), kScopes, "['', 'm', 'm.n1', 'mul']");
  setMetadata(*m.graph().mutable_node(1)->mutable_metadata_props(), kScopes, "['', 'm', 'm.n2', 'mul_1']");
  Exported e = exportModel(m, {{"m.n1.weight", {2, 3}}, {"m.n2.weight", {4, 5}}});
  ASSERT_TRUE(e.done);
  EXPECT_THAT(e.floats("m.n1.weight"), ElementsAre(2, 3));
  EXPECT_THAT(e.floats("m.n2.weight"), ElementsAre(4, 5));
  EXPECT_EQ(e.model.graph().node(0).input(1), "m.n1.weight");
  EXPECT_EQ(e.model.graph().node(1).input(1), "m.n2.weight");
}

TEST(Export, ExternalDataStaysExternal) {
  ModelBuilder m = chain("Mul", "a", "b");
  for (const char* name : {"a", "b"}) {
    onnx::TensorProto& tensor = m.floats(name, {2}, {});
    tensor.clear_raw_data();
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  }
  std::string path = m.save();
  std::string data = std::filesystem::path(path).filename().string() + ".weights";
  std::ofstream(path + ".weights", std::ios::binary) << std::string(4, 'x') << stored({1, 2, 3, 4}, [] {
    static mlir::MLIRContext context;
    return mlir::Float32Type::get(&context);
  }());
  for (int i : {0, 1})
    for (auto [key, value] : {std::pair<std::string, std::string>{"location", data},
                              {"offset", std::to_string(4 + 8 * i)},
                              {"length", "8"}}) {
      auto& entry = *m.graph().mutable_initializer(i)->add_external_data();
      entry.set_key(key);
      entry.set_value(value);
    }
  std::ofstream(path, std::ios::binary) << m.model.SerializeAsString();
  Exported e = exportModel(path, {{"b", {30, 40}}});
  ASSERT_TRUE(e.done) << ::testing::PrintToString(e.errors);
  EXPECT_EQ(e.find("a")->data_location(), onnx::TensorProto::EXTERNAL);
  EXPECT_THAT(e.floats("a"), ElementsAre(1, 2));
  EXPECT_THAT(e.floats("b"), ElementsAre(30, 40));
  EXPECT_TRUE(std::filesystem::exists(e.path + ".data"));
  // The original is gone, and the result stands alone.
  std::filesystem::remove(path + ".weights");
  EXPECT_THAT(e.floats("a"), ElementsAre(1, 2));
  EXPECT_FALSE(exportModel(path, {{"b", {1, 1}}}).done);
}

TEST(Export, TrainingModeIsTurnedToEvaluation) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  m.floats("b", {2}, {3, 4});
  m.floats("ratio", {}, {0.5});
  onnx::TensorProto& mode = m.integers("mode", {}, {});
  mode.set_data_type(onnx::TensorProto::BOOL);
  mode.set_raw_data(std::string(1, '\1'));
  for (const char* name : {"mean", "variance"}) m.floats(name, {2}, {1, 1});
  m.node("Dropout", {"z", "ratio", "mode"}, {"dropped", "mask"});
  onnx::NodeProto& norm =
      m.node("BatchNormalization", {"dropped", "a", "b", "mean", "variance"}, {"out", "new_mean", "new_variance"});
  setInteger(norm, "training_mode", 1);
  m.output("new_variance", {2});
  Exported e = exportModel(m, {{"a", {5, 6}}}, {.loss = "loss"});
  ASSERT_TRUE(e.done) << ::testing::PrintToString(e.errors);
  const auto& nodes = e.model.graph().node();
  ASSERT_EQ(nodes.size(), 6);
  EXPECT_THAT(nodes[3].input(), ElementsAre("z", "ratio"));
  EXPECT_THAT(nodes[4].output(), ElementsAre("out"));
  EXPECT_EQ(nodes[4].attribute_size(), 0);
  EXPECT_EQ(nodes[5].op_type(), "Identity");  // new_variance is an output: what it was
  EXPECT_THAT(nodes[5].input(), ElementsAre("variance"));
  EXPECT_THAT(nodes[5].output(), ElementsAre("new_variance"));

  Exported kept = exportModel(m, {{"a", {5, 6}}}, {.loss = "loss", .keepTraining = true});
  ASSERT_TRUE(kept.done);
  EXPECT_EQ(kept.model.graph().node_size(), 5);
  EXPECT_EQ(kept.model.graph().node(3).input_size(), 3);
  EXPECT_EQ(kept.model.graph().node(4).output_size(), 3);
}

// As `onnx.checker` wants it: every output of a function is a value of it.
bool hasItsOutputs(const onnx::FunctionProto& function) {
  llvm::StringSet<> values;
  for (const std::string& input : function.input()) values.insert(input);
  for (const onnx::NodeProto& node : function.node())
    for (const std::string& output : node.output()) values.insert(output);
  return llvm::all_of(function.output(), [&](const std::string& output) { return values.contains(output); });
}

// Running statistics that a function returns are what they were.
TEST(Export, FunctionsKeepTheirOutputs) {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  for (const char* name : {"scale", "shift", "mean", "variance"}) m.floats(name, {2}, {1, 2});
  m.node("Block", {"x", "scale", "shift", "mean", "variance"}, {"y", "new_mean", "new_variance"}, "local");
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  m.output("new_variance", {2});
  m.model.add_opset_import()->set_domain("local");
  m.model.mutable_opset_import(m.model.opset_import_size() - 1)->set_version(1);
  onnx::FunctionProto& function = *m.model.add_functions();
  function.set_name("Block");
  function.set_domain("local");
  function.add_opset_import()->set_version(20);
  onnx::NodeProto& norm = *function.add_node();
  norm.set_op_type("BatchNormalization");
  setInteger(norm, "training_mode", 1);
  for (const char* name : {"a", "b", "c", "d", "e"}) function.add_input(name), norm.add_input(name);
  for (const char* name : {"o", "m", "v"}) function.add_output(name), norm.add_output(name);
  Exported e = exportModel(m, {{"scale", {5, 6}}}, {.loss = "loss"});
  ASSERT_TRUE(e.done) << ::testing::PrintToString(e.errors);
  const onnx::FunctionProto& result = e.model.functions(0);
  EXPECT_TRUE(hasItsOutputs(result));
  ASSERT_EQ(result.node_size(), 3);
  EXPECT_THAT(result.node(0).output(), ElementsAre("o"));
  for (const onnx::NodeProto& node : {result.node(1), result.node(2)})
    EXPECT_THAT(node.input(), ElementsAre(node.output(0) == "m" ? "d" : "e"));
}

// External data of a branch comes along, too: the result stands alone.
TEST(Export, ExternalDataOfSubgraphsIsCopied) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  m.floats("b", {2}, {3, 4});
  onnx::TensorProto& condition = m.integers("condition", {}, {});
  condition.set_data_type(onnx::TensorProto::BOOL);
  condition.set_raw_data(std::string(1, '\1'));
  onnx::NodeProto& branch = m.node("If", {"condition"}, {"unused"});
  const std::string path = m.save(), data = std::filesystem::path(path).filename().string() + ".weights";
  mlir::MLIRContext context;
  std::ofstream(path + ".weights", std::ios::binary) << stored({7, 8}, mlir::Float32Type::get(&context));
  for (const char* name : {"then_branch", "else_branch"}) {
    onnx::AttributeProto& attribute = *branch.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::AttributeProto::GRAPH);
    onnx::GraphProto& graph = *attribute.mutable_g();
    graph.set_name(name);
    onnx::TensorProto& tensor = *graph.add_initializer();
    tensor = floatTensor("inner", {2}, {});
    tensor.clear_raw_data();
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    auto& entry = *tensor.add_external_data();
    entry.set_key("location");
    entry.set_value(data);
    onnx::NodeProto& identity = *graph.add_node();
    identity.set_op_type("Identity");
    identity.add_input("inner");
    identity.add_output("outer");
    graph.add_output()->set_name("outer");
  }
  std::ofstream(path, std::ios::binary) << m.model.SerializeAsString();
  Exported e = exportModel(path, {{"b", {30, 40}}});
  ASSERT_TRUE(e.done) << ::testing::PrintToString(e.errors);
  for (const onnx::AttributeProto& attribute : e.model.graph().node(e.model.graph().node_size() - 1).attribute()) {
    // As an initializer of the graph, so that it is read in the same way.
    *e.model.mutable_graph()->add_initializer() = attribute.g().initializer(0);
    EXPECT_EQ(e.find("inner")->external_data(0).value(), std::filesystem::path(e.path).filename().string() + ".data");
    EXPECT_THAT(e.floats("inner"), ElementsAre(7, 8));
  }
}

// An initialization would replace what was trained; that of other tensors stays.
TEST(Export, WhatIsTrainedIsNotInitialized) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  m.floats("b", {2}, {3, 4});
  onnx::TrainingInfoProto& info = *m.model.add_training_info();
  for (const char* name : {"a", "b"}) {
    *info.mutable_initialization()->add_initializer() = floatTensor(std::string("new_") + name, {2}, {0, 0});
    setMetadata(*info.mutable_initialization_binding(), name, std::string("new_") + name);
  }
  Exported part = exportModel(m, {{"b", {30, 40}}}, {.loss = "loss"});
  ASSERT_TRUE(part.done) << ::testing::PrintToString(part.errors);
  ASSERT_EQ(part.model.training_info(0).initialization_binding_size(), 1);
  EXPECT_EQ(part.model.training_info(0).initialization_binding(0).key(), "a");
  EXPECT_TRUE(part.model.training_info(0).has_initialization());
  Exported all = exportModel(m, {{"a", {10, 20}}, {"b", {30, 40}}}, {.loss = "loss", .keepTraining = true});
  ASSERT_TRUE(all.done) << ::testing::PrintToString(all.errors);
  EXPECT_EQ(all.model.training_info(0).initialization_binding_size(), 0);
  EXPECT_FALSE(all.model.training_info(0).has_initialization());
}

TEST(Export, AnotherModelIsRefused) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  m.floats("b", {2}, {3, 4});
  Exported e = exportModel(m, {{"a", {5, 6}}, {"c", {7}}});
  EXPECT_FALSE(e.done);
  ASSERT_EQ(e.errors.size(), 1u);
  EXPECT_THAT(
      e.errors[0],
      HasSubstr("has no initializer for the plan's parameter 'c'; give the model that the plan was compiled from"));
  EXPECT_FALSE(std::filesystem::exists(e.path));
}

TEST(Export, ExternalConstantsAreChecked) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  m.floats("b", {2}, {3, 4});
  onnx::AttributeProto& value = *m.node("Constant", {}, {"unused"}).add_attribute();
  value.set_name("value");
  value.set_type(onnx::AttributeProto::TENSOR);
  value.mutable_t()->set_data_type(onnx::TensorProto::STRING);
  value.mutable_t()->set_data_location(onnx::TensorProto::EXTERNAL);
  Exported e = exportModel(m, {{"a", {5, 6}}});
  EXPECT_FALSE(e.done);
  ASSERT_EQ(e.errors.size(), 1u);
  EXPECT_THAT(e.errors[0], HasSubstr("has an unsupported type (STRING) or size"));
}

}  // namespace
}  // namespace sheaf::test
