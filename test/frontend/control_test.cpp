// What is unrolled: loops, scans and recurrences; einsum's products; and inputs that are constants.
#include <gmock/gmock.h>

#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

// y = w doubled by a Loop `trips` times (empty: without a trip count or a condition); loss = sum(y) + 0 * x.
ModelBuilder doubling(std::vector<int64_t> trips) {
  ModelBuilder m = ModelBuilder::unary("Loop", 20, {2}, {1, 2});
  onnx::NodeProto& loop = *m.graph().mutable_node(0);
  std::string initial = loop.input(0);
  loop.clear_input();
  loop.add_input(trips.empty() ? "" : "trips");
  loop.add_input("");
  loop.add_input(initial);
  if (!trips.empty()) m.integers("trips", {}, trips);
  onnx::AttributeProto& a = *loop.add_attribute();
  a.set_name("body");
  onnx::GraphProto& body = *a.mutable_g();
  for (const char* name : {"i", "go", "v"}) body.add_input()->set_name(name);
  auto node = [&](const char* op, std::vector<const char*> inputs, const char* output) {
    onnx::NodeProto& n = *body.add_node();
    n.set_op_type(op);
    for (const char* input : inputs) n.add_input(input);
    n.add_output(output);
  };
  node("Add", {"v", "v"}, "twice");
  node("Identity", {"go"}, "still");
  for (const char* name : {"still", "twice"}) body.add_output()->set_name(name);
  return m;
}

TEST(Unrolled, LoopsRunAsOftenAsTheySay) {
  EXPECT_EQ(lossOf(doubling({3})), 24);
  EXPECT_EQ(lossOf(doubling({0})), 3);
}

TEST(Unrolled, EndlessLoopsAreOneError) {
  EXPECT_THAT(errorOf(doubling({})), HasSubstr("has more than 65536 operations (before the backward pass)"));
  EXPECT_THAT(errorOf(doubling({int64_t(1) << 60})),
              HasSubstr("has more than 65536 operations (before the backward pass)"));
}

TEST(Unrolled, TripCountsFromDataAreRefused) {
  ModelBuilder m = doubling({3});
  m.graph().clear_initializer();
  m.floats("w", {2}, {1, 2});
  m.input("trips", {1}, onnx::TensorProto::INT64);
  EXPECT_THAT(errorOf(m), HasSubstr("trip count depends on data"));
}

TEST(Unrolled, EinsumIsAProductWithoutTranspositions) {
  ModelBuilder m;
  m.input("x", {"N", 4, 3}).output("loss", {});
  m.floats("w", {3, 2}, {1, 2, 3, 4, 5, 6});
  setString(m.node("Einsum", {"x", "w"}, {"y"}), "equation", "bij,jk->bik");
  setInteger(m.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  Imported i = import(m, withBatch(2));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("matmul"), 1);
  EXPECT_EQ(i.count("transpose"), 0);
  EXPECT_EQ(i.count("mul"), 0);
}

TEST(Unrolled, RecurrencesProjectAllInputsAtOnce) {
  ModelBuilder m;
  m.input("x", {"N", 5, 3}).output("loss", {});
  m.floats("w", {2, 16, 3}, std::vector<float>(96, 0.5));
  m.floats("r", {2, 16, 4}, std::vector<float>(128, 0.25));
  setIntegers(m.node("Transpose", {"x"}, {"t"}), "perm", {1, 0, 2});
  setString(m.node("LSTM", {"t", "w", "r"}, {"y"}), "direction", "bidirectional");
  setInteger(m.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  Imported i = import(m, withBatch(2));
  ASSERT_TRUE(i.module);
  // One for the inputs; the first step of each direction has no state to multiply.
  EXPECT_EQ(i.count("matmul"), 1 + 2 * 4);
}

TEST(Constants, AnInputOfIntegersMayBeKnown) {
  ModelBuilder m;
  m.input("x", {"N", 6}).input("shape", {2}, onnx::TensorProto::INT64).output("loss", {});
  m.floats("w", {3}, {1, 2, 3});
  m.node("Reshape", {"x", "shape"}, {"rows"});
  m.node("Mul", {"rows", "w"}, {"y"});
  setInteger(m.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  EXPECT_THAT(errorOf(m), HasSubstr("--const shape=FILE"));
  frontend::ImportOptions options = withBatch(1);
  options.constants = {{"shape", {2}, {2, 3}}};
  EXPECT_EQ(errorOf(m, options), "");
  options.constants = {{"shape", {3}, {1, 2, 3}}};
  EXPECT_THAT(errorOf(m, options), HasSubstr("another shape"));
  options.constants = {{"x", {1}, {2}}};
  EXPECT_THAT(errorOf(m, options), HasSubstr("not of integers"));
  options.constants = {{"nothing", {1}, {2}}};
  EXPECT_THAT(errorOf(m, options), HasSubstr("no such input"));
}

TEST(Opsets, OlderOnesAreWarnedOf) {
  Imported old = import(ModelBuilder::unary("Neg", 6, {2}, {1, 2}), withBatch(1));
  ASSERT_FALSE(old.warnings.empty());
  EXPECT_THAT(old.warnings[0], HasSubstr("uses opset 6"));
  EXPECT_TRUE(import(ModelBuilder::unary("Neg", 7, {2}, {1, 2}), withBatch(1)).warnings.empty());
}

}  // namespace
}  // namespace sheaf::test
