// Which initializers are trainable: by the exporter's metadata, by what the loss depends on, by the user's patterns.
#include <gmock/gmock.h>

#include "ir/Train/TrainDialect.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::HasSubstr;
using ::testing::Not;

namespace sheaf::test {
namespace {

TEST(Parameters, WithoutMetadataFloatTensorsAreTrainable) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  m.floats("b", {}, {3});
  Imported i = import(m, withBatch(4));
  EXPECT_THAT(i.decisions(), HasSubstr("a: trainable"));
  EXPECT_EQ(i.count("parameter"), 1);  // b is a scalar
}

// A temperature is a number that is trained; an exporter's own numbers are not.
TEST(Parameters, NumbersWithTheNameOfAMemberAreTrainable) {
  ModelBuilder m = chain("Mul", "m.logit_scale", "/m/Constant.output_0");
  m.floats("m.logit_scale", {}, {2});
  m.floats("/m/Constant.output_0", {}, {3});
  Imported i = import(m, withBatch(4));
  EXPECT_THAT(i.decisions(), HasSubstr("m.logit_scale: trainable"));
  EXPECT_EQ(i.count("parameter"), 1);
}

TEST(Parameters, BuffersAreConstants) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  m.floats("b", {2}, {3, 4});
  describe(m, "a", kKind, "PARAMETER");
  describe(m, "b", kKind, "BUFFER");
  Imported i = import(m, withBatch(4));
  EXPECT_THAT(i.decisions(), HasSubstr("a: trainable"));
  EXPECT_THAT(i.decisions(), HasSubstr("b: constant, a buffer of the module"));
  // The user may train it all the same.
  frontend::ImportOptions options = withBatch(4);
  options.train = {"^b$"};
  Imported j = import(m, options);
  EXPECT_THAT(j.decisions(), HasSubstr("a: frozen, not named by --train"));
  EXPECT_THAT(j.decisions(), HasSubstr("b: trainable"));
}

TEST(Parameters, WhatNoGradientReachesIsFrozen) {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("a", {2}, {1, 2});
  m.floats("b", {2}, {1, 2});
  m.node("Greater", {"x", "b"}, {"c"});
  m.node("Where", {"c", "x", "a"}, {"y"});
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  Imported i = import(m, withBatch(4));
  EXPECT_THAT(i.decisions(), HasSubstr("a: trainable"));
  EXPECT_THAT(i.decisions(), HasSubstr("b: frozen, no gradient reaches it"));
}

TEST(Parameters, FreezeWins) {
  ModelBuilder m = chain("Mul", "a", "b");
  m.floats("a", {2}, {1, 2});
  m.floats("b", {2}, {3, 4});
  frontend::ImportOptions options = withBatch(4);
  options.freeze = {"a"};
  Imported i = import(m, options);
  EXPECT_THAT(i.decisions(), HasSubstr("a: frozen, named by --freeze"));
  EXPECT_THAT(i.decisions(), HasSubstr("b: trainable"));
}

// IR below 4 lists initializers among the inputs, too.
TEST(Parameters, InitializersThatAreInputsAreNoData) {
  ModelBuilder m = chain("Mul", "a", "a");
  m.model.set_ir_version(3);
  m.floats("a", {2}, {1, 2});
  m.input("a", {2});
  Imported i = import(m, withBatch(4));
  EXPECT_THAT(i.decisions(), HasSubstr("a: trainable, tied (2 uses)"));
}

// A transposed Linear weight that was folded although its original is still used: one parameter again.
TEST(Parameters, BrokenTieIsRestored) {
  ModelBuilder m;
  m.input("ids", {"N"}, onnx::TensorProto::INT64).output("loss", {});
  m.floats("m.head.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  m.floats("val_1", {2, 3}, {1, 3, 5, 2, 4, 6});
  describe(m, "m.head.weight", kKind, "PARAMETER");
  describe(m, "val_1", kFoldedFrom, "['m.head.weight']");
  m.node("Gather", {"m.head.weight", "ids"}, {"e"});
  m.node("MatMul", {"e", "val_1"}, {"y"});
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  Imported i = import(m, withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("parameter"), 1);
  EXPECT_THAT(i.decisions(), HasSubstr("m.head.weight: trainable, tied (2 uses)"));
  EXPECT_EQ(i.count("matmul"), 1);
  i.module->walk([](train::MatMulOp op) { EXPECT_TRUE(op.getTransposeB()); });
}

// loss = mean(m.scale + value), value [1, rows, 2] being what the exporter's optimizer computed.
ModelBuilder folded(const std::string& value, std::vector<float> values, const std::string& sources) {
  ModelBuilder m;
  m.input("x", {"N", int64_t(values.size() / 2), 2}).output("loss", {});
  m.floats(value, {1, int64_t(values.size() / 2), 2}, values);
  m.floats("m.scale", {2}, {1, 2});
  describe(m, "m.scale", kKind, "PARAMETER");
  describe(m, value, kFoldedFrom, sources);
  m.node("Mul", {"x", "m.scale"}, {"y"});
  m.node("Add", {"y", value}, {"z"});
  setInteger(m.node("ReduceMean", {"z"}, {"loss"}), "keepdims", 0);
  return m;
}

// A table whose rows were looked up by a buffer of constant positions; equal rows are one row.
TEST(Parameters, FoldedLookUpsAreTheirTables) {
  const std::string sources = "['m.pos.weight', 'm.position_ids', 'slice_1', 'val_2']";
  Imported i = import(folded("embedding_1", {1, 2, 3, 4, 5, 6}, sources), withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_THAT(i.decisions(), HasSubstr("m.pos.weight: trainable, folded into 'embedding_1'"));
  EXPECT_EQ(i.count("gather"), 0);
  ASSERT_EQ(i.warnings.size(), 1u);
  EXPECT_THAT(i.warnings[0], HasSubstr("folded 1 parameter into constants"));

  ModelBuilder m = folded("embedding_1", {1, 2, 3, 4, 1, 2, 1, 2}, sources);
  Imported repeated = import(m, withBatch(4));
  ASSERT_TRUE(repeated.module);
  auto table = repeated.module->lookupSymbol<train::ParameterOp>("m.pos.weight");
  ASSERT_TRUE(table);
  EXPECT_EQ(mlir::cast<mlir::RankedTensorType>(table.getType()).getShape(), llvm::ArrayRef<int64_t>({2, 2}));
  EXPECT_EQ(repeated.count("gather"), 1);
  std::string path = m.save();
  Imported one = import(path, withBatch(1));
  EXPECT_EQ(firstLoss(*one.module, modelFolder(), ""), 2);
}

// The table itself is used as well: a tie.
TEST(Parameters, FoldedLookUpsAreTiedToTheirTable) {
  ModelBuilder m = folded("embedding_1", {5, 6, 1, 2}, "['m.tok.weight', 'm.position_ids']");
  m.input("ids", {"N"}, onnx::TensorProto::INT64);
  m.floats("m.tok.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
  describe(m, "m.tok.weight", kKind, "PARAMETER");
  m.graph().mutable_node()->RemoveLast();
  m.node("Gather", {"m.tok.weight", "ids"}, {"e"});
  m.node("ReduceMean", {"e"}, {"a"});
  m.node("ReduceMean", {"z"}, {"b"});
  m.node("Add", {"a", "b"}, {"c"});
  setInteger(m.node("ReduceMean", {"c"}, {"loss"}), "keepdims", 0);
  std::string path = m.save();
  Imported i = import(path, withBatch(1));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("parameter"), 2);
  EXPECT_THAT(i.decisions(),
              HasSubstr("m.tok.weight: trainable, tied again: rows folded into 'embedding_1', tied (2 uses)"));
  EXPECT_EQ(firstLoss(*i.module, modelFolder(), ""), 1.5 + 3.5);
}

// Arithmetic on parameters, and rows that may merely start equal, cannot be taken back.
TEST(Parameters, FoldedArithmeticIsNamed) {
  auto warning = [](const ModelBuilder& m) {
    Imported i = import(m, withBatch(4));
    return i.warnings.size() == 1 ? i.warnings[0] : std::to_string(i.warnings.size()) + " warnings";
  };
  const std::string logs = "['m.A_log', 'exp']", table = "['m.pos.weight', 'm.position_ids']";
  EXPECT_THAT(warning(folded("neg", {1, 2, 3, 4}, logs)), HasSubstr("not trained: 'm.A_log' in 'neg'. Export with"));
  EXPECT_THAT(warning(folded("mul_1", {1, 2, 3, 4}, table)), HasSubstr("not trained: 'm.pos.weight' in 'mul_1'"));
  EXPECT_THAT(warning(folded("mul_1", {1, 2, 3, 4}, "['m.a.weight', 'm.b.weight', 'mul']")), HasSubstr("not trained"));
  EXPECT_THAT(warning(folded("embedding_1", {0, 0, 0, 0}, table)), HasSubstr("not trained: 'm.pos.weight'"));
  EXPECT_THAT(warning(folded("unsqueeze_1", {1, 2}, "['m.log', 'exp']")), HasSubstr("not trained: 'm.log'"));
  EXPECT_THAT(warning(folded("unsqueeze_1", {1, 2}, "['m.scale_1', 'unsqueeze', 'val_2']")),
              HasSubstr("folded 1 parameter"));
  EXPECT_THAT(warning(folded("unsqueeze_1", {1, 2, 3, 4}, "['m.conv.weight', 'val_2']")),
              HasSubstr("folded 1 parameter"));
  EXPECT_THAT(warning(folded("unsqueeze_1", {1, 2, 3, 4}, "['m.table', 'index']")),
              HasSubstr("not trained: 'm.table'"));
  EXPECT_THAT(warning(folded("val_3", {1, 2}, "['m.norm.weight', 'val_2']")), HasSubstr("folded 1 parameter"));
  EXPECT_EQ(warning(folded("cos_1", {1, 2, 3, 4}, "['m.rotary.inv_freq', 'val_1']")), "0 warnings");
}

// Scales that merely start equal were merged; the modules that use them tell them apart. Ties of matrices stay.
TEST(Parameters, MergedVectorsAreUnmerged) {
  ModelBuilder m = chain("Mul", "m.n1.weight", "m.n1.weight");
  m.floats("m.n1.weight", {2}, {1, 1});
  m.floats("val_1", {1}, {1});
  describe(m, "m.n1.weight", kKind, "PARAMETER");
  describe(m, "val_1", kFoldedFrom, "['val_0']");
  setMetadata(*m.graph().mutable_node(0)->mutable_metadata_props(), kScopes, "['', 'm', 'm.n1', 'mul']");
  setMetadata(*m.graph().mutable_node(1)->mutable_metadata_props(), kScopes, "['', 'm', 'm.n2', 'mul_1']");
  Imported i = import(m, withBatch(4));
  ASSERT_TRUE(i.module);
  auto first = i.module->lookupSymbol<train::ParameterOp>("m.n1.weight");
  auto second = i.module->lookupSymbol<train::ParameterOp>("m.n2.weight");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first.getSourceAttr(), second.getSourceAttr());
  ASSERT_EQ(i.warnings.size(), 1u);
  EXPECT_THAT(i.warnings[0], HasSubstr("merged parameters of equal value; 'm.n2.weight' was separated again"));
  EXPECT_THAT(i.decisions(), Not(HasSubstr("tied")));
}

// Typed fields have no bytes in the file to point at, so the values travel with the module.
TEST(Parameters, TypedFieldsBecomeValues) {
  ModelBuilder m = chain("Mul", "a", "a");
  onnx::TensorProto& a = m.floats("a", {2}, {});
  a.clear_raw_data();
  a.add_float_data(1.5);
  a.add_float_data(1.5);
  Imported i = import(m, withBatch(4));
  ASSERT_TRUE(i.module);
  auto op = i.module->lookupSymbol<train::ParameterOp>("a");
  ASSERT_TRUE(op && op.getValueAttr() && !op.getSourceAttr());
  EXPECT_EQ(op.getValueAttr().getShapedType(), op.getType());
}

// What looks like a weight and is not an initializer of the graph is named among the decisions.
TEST(Parameters, ConstantsOfNodesAreNamed) {
  ModelBuilder m = chain("Mul", "a", "fixed");
  m.floats("a", {2}, {1, 2});
  onnx::NodeProto& constant = *m.graph().add_node();
  constant.set_op_type("Constant");
  constant.add_output("fixed");
  onnx::AttributeProto& value = *constant.add_attribute();
  value.set_name("value");
  value.set_type(onnx::AttributeProto::TENSOR);
  *value.mutable_t() = floatTensor("", {2}, {3, 4});
  // Nodes are in the order of their dependences.
  for (int i = m.graph().node_size() - 1; i > 0; --i) m.graph().mutable_node()->SwapElements(i, i - 1);
  Imported i = import(m, withBatch(4));
  ASSERT_TRUE(i.module) << i.errors.size();
  EXPECT_THAT(i.decisions(), HasSubstr("fixed: constant, the value of a Constant node, which is not trained"));
}

}  // namespace
}  // namespace sheaf::test
