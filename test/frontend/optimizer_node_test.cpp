// The standard's optimizer operators against the stored outputs of ONNX's own node tests: each node as the update of a
// model with training_info, one element at a time, as kernels compute it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "ir/Train/Evaluator.h"
#include "ir/Train/TrainDialect.h"
#include "test/Paths.h"
#include "test/frontend/ModelBuilder.h"

namespace sheaf::test {
namespace {

constexpr const char* kTraining = "ai.onnx.preview.training";

std::string readFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

onnx::TensorProto readTensor(const std::string& folder, const std::string& kind, int i) {
  onnx::TensorProto tensor;
  EXPECT_TRUE(tensor.ParseFromString(readFile(folder + "/test_data_set_0/" + kind + "_" + std::to_string(i) + ".pb")));
  return tensor;
}

std::vector<float> valuesOf(const onnx::TensorProto& tensor) {
  std::vector<float> values(tensor.raw_data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.raw_data().data(), tensor.raw_data().size());
  return values.empty() ? std::vector<float>(tensor.float_data().begin(), tensor.float_data().end()) : values;
}

using Group = std::vector<onnx::TensorProto>;  // one tensor a variable

class OptimizerNodes : public testing::TestWithParam<std::string> {};

TEST_P(OptimizerNodes, GiveTheStoredOutputs) {
  const std::string folder = std::string(sheaf::paths::kOnnxNodeTests) + "/" + GetParam();
  onnx::ModelProto stored;
  ASSERT_TRUE(stored.ParseFromString(readFile(folder + "/model.onnx")));
  ASSERT_EQ(stored.graph().node_size(), 1);
  onnx::NodeProto node = stored.graph().node(0);
  // Rate, counter, then variables, gradients and one or two kinds of states, each for all variables.
  const int groups = node.op_type() == "Adam" ? 4 : 3, variables = (node.input_size() - 2) / groups;
  ASSERT_GE(variables, 1);
  std::vector<Group> inputs(groups), outputs(groups - 1);
  for (int g = 0; g < groups; ++g)
    for (int v = 0; v < variables; ++v) inputs[g].push_back(readTensor(folder, "input", 2 + g * variables + v));
  for (int g = 0; g < groups - 1; ++g)
    for (int v = 0; v < variables; ++v) outputs[g].push_back(readTensor(folder, "output", g * variables + v));

  // loss = the sum of all variables and of a data input.
  ModelBuilder m;
  m.input("x", {"N"}).output("loss", {});
  auto* import_ = m.model.add_opset_import();
  import_->set_domain(kTraining);
  import_->set_version(1);
  setInteger(m.node("ReduceSum", {"x"}, {"sum"}), "keepdims", 0);
  onnx::TrainingInfoProto& info = *m.model.add_training_info();
  onnx::GraphProto& algorithm = *info.mutable_algorithm();
  onnx::NodeProto& gradient = *algorithm.add_node();
  gradient.set_op_type("Gradient");
  gradient.set_domain(kTraining);
  Names names;
  auto bind = [&](const std::string& name, const std::string& next) {
    setMetadata(*info.mutable_update_binding(), name, next);
  };
  std::string sum = "sum";
  auto nameOf = [](int g, int v) { return (g == 0 ? "X" : g == 2 ? "V" : "H") + std::to_string(v); };
  for (int v = 0; v < variables; ++v) {
    names.push_back(nameOf(0, v));
    gradient.add_input(names.back());
    gradient.add_output("G" + std::to_string(v));
    for (int g = 0; g < groups; ++g) {
      if (g == 1) continue;
      onnx::TensorProto& tensor = *m.graph().add_initializer();
      tensor = inputs[g][v];
      tensor.set_name(nameOf(g, v));
      // A state starts at zero; what the test starts from is given to the rule below.
      if (g > 1) tensor.set_raw_data(std::string(tensor.raw_data().size(), '\0'));
    }
    setInteger(m.node("ReduceSum", {names.back()}, {"sum" + names.back()}), "keepdims", 0);
    m.node("Add", {sum, "sum" + names.back()}, {"total" + names.back()});
    sum = "total" + names.back();
  }
  m.node("Identity", {sum}, {"loss"});
  setStrings(gradient, "xs", names);
  setString(gradient, "y", "loss");
  for (int i = 0; i < 2; ++i) {
    onnx::TensorProto& tensor = *algorithm.add_initializer();
    tensor = readTensor(folder, "input", i);
    tensor.set_name(i ? "T" : "R");
  }
  node.clear_input();
  node.clear_output();
  node.add_input("R");
  node.add_input("T");
  for (int g = 0; g < groups; ++g)
    for (int v = 0; v < variables; ++v) node.add_input(g == 1 ? "G" + std::to_string(v) : nameOf(g, v));
  for (int g = 0; g < groups; ++g)
    for (int v = 0; v < variables; ++v) {
      if (g == 1) continue;
      node.add_output(nameOf(g, v) + ".next");
      bind(nameOf(g, v), nameOf(g, v) + ".next");
    }
  // The stored outputs of this one were computed with an epsilon that its node lacks
  // (onnx/backend/test/case/node/adam.py).
  if (GetParam() == "test_adam_multiple") setFloat(node, "epsilon", 1e-2f);
  *algorithm.add_node() = node;

  Imported imported = import(m, withBatch(4));
  ASSERT_TRUE(imported.module) << (imported.errors.empty() ? "" : imported.errors[0]);
  auto scalar = [&](double value) {
    train::Tensor t =
        train::Tensor::zeros(mlir::RankedTensorType::get({}, mlir::Float32Type::get(imported.context.get())));
    t.f[0] = value;
    return t;
  };
  for (int v = 0; v < variables; ++v) {
    auto parameter = imported.module->lookupSymbol<train::ParameterOp>(nameOf(0, v));
    ASSERT_TRUE(parameter);
    auto rule = imported.module->lookupSymbol<train::OptimizerOp>(
        parameter->getAttrOfType<mlir::FlatSymbolRefAttr>("train.optimizer").getAttr());
    ASSERT_TRUE(rule);
    ASSERT_EQ(int(rule.getStates().size()), groups - 2);
    // The states are in the order in which the rule reads them: where it has two, V and H.
    const size_t elements = valuesOf(inputs[0][v]).size();
    for (size_t i = 0; i < elements; ++i) {
      std::vector<train::Tensor> arguments;
      for (int g = 0; g < groups; ++g) arguments.push_back(scalar(valuesOf(inputs[g][v])[i]));
      for (mlir::Attribute a : rule.getScalars()) {
        auto entry = mlir::cast<train::ScalarAttr>(a);
        ASSERT_EQ(entry.getKind(), train::ScalarKind::constant);
        arguments.push_back(scalar(entry.getValue().getValueAsDouble()));
      }
      auto result = train::evaluateRegion(rule.getBody(), arguments);
      ASSERT_TRUE(mlir::succeeded(result));
      for (int g = 0; g < groups - 1; ++g) {
        const double expected = valuesOf(outputs[g][v])[i];
        EXPECT_NEAR(result->results[g].f[0], expected, 1e-7 + 1e-3 * std::fabs(expected))
            << "output " << g << " of variable " << v << ", element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Onnx, OptimizerNodes,
                         testing::Values("test_adagrad", "test_adagrad_multiple", "test_adam", "test_adam_multiple",
                                         "test_momentum", "test_momentum_multiple", "test_nesterov_momentum"),
                         [](const auto& info) { return info.param.substr(5); });

}  // namespace
}  // namespace sheaf::test
