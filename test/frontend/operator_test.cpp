// Operators whose form depends on the opset, functions, subgraphs and sequences.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

TEST(Operators, AxesAsAttributeAndAsInput) {
  ModelBuilder attribute = ModelBuilder::unary("ReduceMax", 13, {2, 2}, {1, 5, 2, 3});
  setIntegers(*attribute.graph().mutable_node(0), "axes", {-1});
  EXPECT_EQ(lossOf(attribute), 8);
  ModelBuilder input = ModelBuilder::unary("ReduceMax", 18, {2, 2}, {1, 5, 2, 3}, {"axes"});
  input.integers("axes", {1}, {0});
  EXPECT_EQ(lossOf(input), 7);
  ModelBuilder squeeze = ModelBuilder::unary("Squeeze", 11, {1, 2}, {1, 5});
  setIntegers(*squeeze.graph().mutable_node(0), "axes", {0});
  EXPECT_EQ(lossOf(squeeze), 6);
}

TEST(Operators, SoftmaxBeforeOpset13FlattensDimensions) {
  // One softmax over four elements, so the sum is 1; later, over the last dimension: 2.
  ModelBuilder old = ModelBuilder::unary("Softmax", 11, {1, 2, 2}, {1, 2, 3, 4});
  EXPECT_NEAR(lossOf(old), 1, 1e-12);
  ModelBuilder now = ModelBuilder::unary("Softmax", 13, {1, 2, 2}, {1, 2, 3, 4});
  EXPECT_NEAR(lossOf(now), 2, 1e-12);
}

TEST(Operators, ClipTakesAttributesThenInputs) {
  ModelBuilder old = ModelBuilder::unary("Clip", 7, {3}, {-5, 1, 9});
  setFloat(*old.graph().mutable_node(0), "min", 0);
  setFloat(*old.graph().mutable_node(0), "max", 4);
  EXPECT_EQ(lossOf(old), 5);
  ModelBuilder now = ModelBuilder::unary("Clip", 13, {3}, {-5, 1, 9}, {"", "max"});
  now.floats("max", {}, {4});
  EXPECT_EQ(lossOf(now), 0);
}

// As EfficientNet pools: a window of all channels over an image of a few pixels.
TEST(Operators, AWindowMayHangOverWithCeilMode) {
  auto pooled = [](const std::string& op, int64_t ceil) {
    ModelBuilder m = ModelBuilder::unary(op, 19, {1, 1, 2, 2}, {1, 2, 3, 6});
    onnx::NodeProto& node = *m.graph().mutable_node(0);
    setIntegers(node, "kernel_shape", {1280, 1280});
    setIntegers(node, "strides", {1280, 1280});
    setInteger(node, "ceil_mode", ceil);
    if (op == "AveragePool") setInteger(node, "count_include_pad", 1);
    return m;
  };
  EXPECT_EQ(lossOf(pooled("AveragePool", 1)), 3);
  EXPECT_EQ(lossOf(pooled("MaxPool", 1)), 6);
  EXPECT_THAT(import(pooled("AveragePool", 0), withBatch(1)).errors.at(0),
              HasSubstr("the window is larger than its padded input"));
}

TEST(Operators, DropoutInInferenceFormIsNothingAndWarns) {
  Imported m = import(ModelBuilder::unary("Dropout", 13, {3}, {1, 2, 3}), withBatch(1));
  ASSERT_TRUE(m.module);
  EXPECT_EQ(m.count("dropout"), 0);
  ASSERT_EQ(m.warnings.size(), 1u);
  EXPECT_THAT(m.warnings[0], HasSubstr("inference form"));
  ModelBuilder training = ModelBuilder::unary("Dropout", 13, {3}, {1, 2, 3}, {"ratio", "training"});
  training.floats("ratio", {}, {0.25});
  onnx::TensorProto& flag = training.integers("training", {}, {});
  flag.set_data_type(onnx::TensorProto::BOOL);
  flag.add_int32_data(1);
  Imported t = import(training, withBatch(1));
  EXPECT_EQ(t.count("dropout"), 1);
  EXPECT_TRUE(t.warnings.empty());
}

// Indices that count the rows of the data, as in x[arange(n), i], keep rows of the batch apart.
TEST(Operators, GatherNdInRows) {
  // The data [2, 3, 2] hold their own positions, and the p-th element of the result weighs 1 + p * p.
  auto weighed = [](std::vector<int64_t> dims, const std::vector<int64_t>& tuples, int gathers) {
    ModelBuilder m;
    m.input("x", {"N", 1}).output("loss", {});
    std::vector<float> data(12), weights;
    for (int i = 0; i < 12; ++i) data[i] = float(i);
    double expected = 0;
    for (size_t t = 0; t < tuples.size(); t += 2)
      for (int k = 0; k < 2; ++k) {
        weights.push_back(float(1 + weights.size() * weights.size()));
        expected += weights.back() * double(tuples[t] * 6 + (tuples[t + 1] + 3) % 3 * 2 + k);
      }
    m.floats("w", {2, 3, 2}, data);
    m.integers("indices", dims, tuples);
    dims.back() = 2;
    m.integers("weights", dims, {weights.begin(), weights.end()});
    m.node("GatherND", {"w", "indices"}, {"g"});
    setInteger(m.node("Cast", {"weights"}, {"c"}), "to", onnx::TensorProto::FLOAT);
    m.node("Mul", {"g", "c"}, {"y"});
    m.node("ReduceSum", {"y"}, {"sum"});
    m.node("ReduceSum", {"x"}, {"zero"});
    m.node("Add", {"sum", "zero"}, {"all"});
    setInteger(m.node("ReduceSum", {"all"}, {"loss"}), "keepdims", 0);
    EXPECT_EQ(import(m, withBatch(1)).count("gather"), gathers);
    EXPECT_EQ(lossOf(m), expected);
  };
  weighed({2, 2, 2}, {0, 2, 0, 0, 1, 2, 1, -3}, 1);                // [row, i]
  weighed({3, 2, 2}, {0, 2, 1, 2, 0, 0, 1, 0, 0, 2, 1, 2}, 1);     // [i, row]
  weighed({2, 1, 3, 2}, {0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2}, 0);  // all elements: nothing to look up
  weighed({2, 2, 2}, {0, 2, 0, 0, 1, 2, 1, 1}, 0);                 // rows differ: elements of each row
  weighed({2, 2}, {1, 2, 0, 2}, 1);                                // rows in another order
}

TEST(Operators, TransposeBecomesAFlagOfTheProduct) {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("w", {3, 2}, {1, 2, 3, 4, 5, 6});
  setIntegers(m.node("Transpose", {"w"}, {"t"}), "perm", {1, 0});
  m.node("MatMul", {"x", "t"}, {"y"});
  setInteger(m.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  Imported i = import(m, withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("transpose"), 0);
  EXPECT_EQ(i.count("matmul"), 1);
  i.module->walk([](train::MatMulOp op) { EXPECT_TRUE(op.getTransposeB()); });
}

TEST(Operators, FunctionsAreInlinedWithTheirAttributes) {
  ModelBuilder m = ModelBuilder::unary("Shift", 20, {2}, {1, 2});
  onnx::NodeProto& call = *m.graph().mutable_node(0);
  call.set_domain("local");
  setFloat(call, "by", 10);
  onnx::FunctionProto& f = *m.model.add_functions();
  f.set_name("Shift");
  f.set_domain("local");
  f.add_input("a");
  f.add_output("b");
  f.add_attribute("by");
  f.add_opset_import()->set_version(20);
  onnx::NodeProto& constant = *f.add_node();
  constant.set_op_type("Constant");
  constant.add_output("c");
  onnx::AttributeProto& value = *constant.add_attribute();
  value.set_name("value_float");
  value.set_ref_attr_name("by");
  onnx::NodeProto& add = *f.add_node();
  add.set_op_type("Add");
  add.add_input("a");
  add.add_input("c");
  add.add_output("b");
  EXPECT_EQ(lossOf(m), 23);
}

TEST(Operators, KnownBranchesAndSequencesVanish) {
  ModelBuilder m = ModelBuilder::unary("SplitToSequence", 20, {4}, {1, 2, 4, 8}, {"parts"});
  m.integers("parts", {2}, {1, 3});
  m.integers("at", {}, {-1});
  // The last part, through a branch that is always taken.
  m.graph().mutable_node(0)->set_output(0, "sequence");
  onnx::NodeProto& at = m.node("SequenceAt", {"sequence", "at"}, {"part"});
  onnx::TensorProto& flag = m.integers("yes", {}, {});
  flag.set_data_type(onnx::TensorProto::BOOL);
  flag.add_int32_data(1);
  onnx::NodeProto branch;
  branch.set_op_type("If");
  branch.add_input("yes");
  branch.add_output("y");
  for (const char* name : {"then_branch", "else_branch"}) {
    onnx::AttributeProto& a = *branch.add_attribute();
    a.set_name(name);
    onnx::NodeProto& inner = *a.mutable_g()->add_node();
    inner.set_op_type(std::string(name) == "then_branch" ? "Neg" : "Unknown");
    inner.add_input("part");
    inner.add_output("r");
    a.mutable_g()->add_output()->set_name("r");
  }
  onnx::NodeProto access = at;
  m.graph().mutable_node()->RemoveLast();
  std::vector<onnx::NodeProto> rest(m.graph().node().begin() + 1, m.graph().node().end());
  m.graph().mutable_node()->DeleteSubrange(1, int(rest.size()));
  *m.graph().add_node() = access;
  *m.graph().add_node() = branch;
  for (auto& node : rest) *m.graph().add_node() = node;
  EXPECT_EQ(lossOf(m), -14);
}

TEST(Operators, CrossEntropyDividesByTheLabelsThatCount) {
  ModelBuilder m;
  m.input("labels", {"N"}, onnx::TensorProto::INT64).output("loss", {});
  m.floats("w", {2, 3}, {1, 2, 3, 4, 5, 6});
  setInteger(m.node("SoftmaxCrossEntropyLoss", {"w", "labels"}, {"loss"}), "ignore_index", 0);
  std::string path = m.save();
  Imported i = import(path, withBatch(2));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("cross_entropy"), 1);
  // The first of two labels counts; the loss is its own, not half of it.
  auto step = i.module->lookupSymbol<mlir::func::FuncOp>("step");
  train::Tensor labels = train::Tensor::zeros(mlir::cast<mlir::RankedTensorType>(step.getArgumentTypes()[0]));
  labels.i = {1, 0};
  auto parameters = readParameters(*i.module, modelFolder());
  auto result = train::evaluateFunction(step, {labels}, parameters);
  ASSERT_TRUE(succeeded(result) && result->loss);
  EXPECT_NEAR(result->loss->f[0], std::log(std::exp(-1) + 1 + std::exp(1)), 1e-12);
}

}  // namespace
}  // namespace sheaf::test
