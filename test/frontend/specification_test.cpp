// Nodes that exporters seldom write have the values of ONNX's specification.
#include <gmock/gmock.h>

#include <cmath>

#include "ir/Train/Limits.h"
#include "ir/Train/TrainDialect.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

onnx::NodeProto& first(ModelBuilder& m) {
  return *m.graph().mutable_node(0);
}

// loss = sum(y) + sum(x) + sum(p), x [N], with a parameter p of zero: what is known trains nothing.
ModelBuilder summing(int64_t opset) {
  ModelBuilder m(opset);
  m.input("x", {"N"}).output("loss", {});
  m.floats("p", {1}, {0});
  return m;
}
void sum(ModelBuilder& m, const std::string& y) {
  setInteger(m.node("Cast", {y}, {"floats"}), "to", onnx::TensorProto::FLOAT);
  setInteger(m.node("ReduceSum", {"floats"}, {"sum"}), "keepdims", 0);
  m.node("Add", {"x", "p"}, {"zeros"});
  setInteger(m.node("ReduceSum", {"zeros"}, {"zero"}), "keepdims", 0);
  m.node("Add", {"sum", "zero"}, {"loss"});
}
void cast(ModelBuilder& m, const std::string& from, const std::string& to, int64_t type) {
  setInteger(m.node("Cast", {from}, {to}), "to", type);
}

// "Composite-reduction operators will still perform the non-reduction steps as needed."
TEST(Specification, ReductionsOverNoAxes) {
  const struct {
    std::string op;
    std::vector<float> values;
    double sum;
  } cases[] = {{"ReduceSumSquare", {-2, 3}, 13}, {"ReduceL1", {-2, 3}, 5},
               {"ReduceL2", {-2, 3}, 5},         {"ReduceLogSum", {1, 4}, 2 * M_LN2},
               {"ReduceLogSumExp", {-2, 3}, 1},  {"ReduceSum", {-2, 3}, 1},
               {"ReduceMax", {-2, 3}, 1}};
  for (const auto& c : cases) {
    ModelBuilder m = ModelBuilder::unary(c.op, 18, {2}, c.values);
    setInteger(first(m), "noop_with_empty_axes", 1);
    EXPECT_NEAR(lossOf(m), c.sum, 1e-12) << c.op;
  }
}

// A value without elements depends on nothing: no op of the step has an operand of that kind, which no kernel has.
TEST(Specification, ReductionsOfNoElements) {
  const struct {
    std::string op;
    std::vector<int64_t> dims;
    double sum;
  } cases[] = {{"ReduceLogSumExp", {2, 4}, -kInfinity},
               {"ReduceLogSum", {2, 4}, -kInfinity},
               {"ReduceMax", {2, 4}, -kInfinity},
               {"ReduceProd", {2, 4}, 2},
               {"ReduceSumSquare", {2, 4}, 0},
               {"GlobalAveragePool", {1, 2, 4}, std::nan("")},
               {"GlobalMaxPool", {1, 2, 4}, -kInfinity},
               {"Softmax", {2, 4}, 0},
               {"LogSoftmax", {2, 4}, 0},
               {"Relu", {2, 4}, 0}};
  for (const auto& c : cases) {
    ModelBuilder m = summing(13);
    const int64_t last = int64_t(c.dims.size()) - 1;
    m.floats("w", c.dims, std::vector<float>(8, 1));
    m.integers("none", {1}, {0});
    m.integers("axis", {1}, {last});
    m.node("Slice", {"w", "none", "none", "axis"}, {"empty"});
    onnx::NodeProto& node = m.node(c.op, {"empty"}, {"y"});
    if (c.op.starts_with("Reduce")) setIntegers(node, "axes", {last});
    sum(m, "y");
    const double loss = lossOf(m);
    EXPECT_TRUE(loss == c.sum || (std::isnan(loss) && std::isnan(c.sum))) << c.op << ": " << loss;
    Imported imported = import(m, withBatch(1));
    imported.module->walk([&](mlir::Operation* op) {
      for (mlir::Value v : op->getOperands())
        if (auto type = mlir::dyn_cast<mlir::RankedTensorType>(v.getType())) {
          EXPECT_TRUE(type.getNumElements() > 0 || op->getNumResults() == 0) << c.op;
        }
    });
  }
}

TEST(Specification, ReduceMinOfNoBytesIsTheLargest) {
  ModelBuilder m = summing(20);
  onnx::TensorProto& empty = *m.graph().add_initializer();
  empty.set_name("bytes");
  empty.set_data_type(onnx::TensorProto::UINT8);
  empty.add_dims(2);
  empty.add_dims(0);
  m.integers("axis", {1}, {1});
  m.node("ReduceMin", {"bytes", "axis"}, {"y"});
  sum(m, "y");
  EXPECT_EQ(lossOf(m), 2 * 255);
}

// The power is computed with the exponent's fraction, and then has the base's type.
TEST(Specification, PowersOfIntegersWithFractions) {
  for (auto [exponent, expected] : {std::pair(0.5f, 5.0), {2.5f, 32.0 + 243.0}, {2.0f, 97.0}, {-0.5f, 0.0}}) {
    ModelBuilder m = summing(13);
    m.integers("base", {2}, {4, 9});
    m.floats("exponent", {}, {exponent});
    m.node("Pow", {"base", "exponent"}, {"y"});
    sum(m, "y");
    EXPECT_EQ(lossOf(m), expected) << exponent;
  }
  ModelBuilder exact = summing(13);  // beyond what f32 and f64 hold
  exact.integers("base", {1}, {3});
  exact.floats("exponent", {}, {39});
  exact.integers("power", {1}, {4052555153018976267});
  exact.node("Pow", {"base", "exponent"}, {"raised"});
  exact.node("Equal", {"raised", "power"}, {"y"});
  sum(exact, "y");
  EXPECT_EQ(lossOf(exact), 1);
}

TEST(Specification, ShrinkBelowComesFirst) {
  ModelBuilder m = ModelBuilder::unary("Shrink", 9, {1}, {0});
  setFloat(first(m), "lambd", -1);
  setFloat(first(m), "bias", 1);
  EXPECT_EQ(lossOf(m), 1);
}

TEST(Specification, HardmaxTakesTheFirstNan) {
  for (float front : {1.0f, NAN}) {
    ModelBuilder m = summing(13);
    m.floats("w", {1, 3}, {front, NAN, 3});
    m.floats("weights", {3}, {1, 10, 100});
    m.node("Hardmax", {"w"}, {"hot"});
    m.node("Mul", {"hot", "weights"}, {"y"});
    sum(m, "y");
    EXPECT_EQ(lossOf(m), std::isnan(front) ? 1 : 10);
  }
}

TEST(Specification, AxesOutOfRangeAndTwice) {
  for (const char* op : {"Softmax", "LogSoftmax", "Hardmax"})
    EXPECT_THAT(errorOf(ModelBuilder::unary(op, 11, {4}, {1, 2, 3, 4})), HasSubstr("axis 1 is out of range")) << op;
  ModelBuilder twice = ModelBuilder::unary("MeanVarianceNormalization", 13, {1, 1, 2, 2}, {1, 2, 3, 4});
  setIntegers(first(twice), "axes", {2, 3, -1});
  EXPECT_THAT(errorOf(twice), HasSubstr("an axis is named twice"));
}

TEST(Specification, APreluSlopeBroadcastsToTheInput) {
  ModelBuilder m = ModelBuilder::unary("PRelu", 16, {4}, {-1, 2, 3, 4}, {"slope"});
  m.floats("slope", {3, 1}, {1, 2, 3});
  EXPECT_THAT(errorOf(m), HasSubstr("the slope, input 1, does not broadcast"));
}

// An epsilon that f16 rounds to 0.
TEST(Specification, EpsilonsOfHalvesAreOfF32) {
  for (const char* op : {"InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"}) {
    ModelBuilder m = summing(21);
    m.floats("w", {1, 2, 2}, {1, 1, 3, 3});
    m.floats("scale", {2}, {1, 1});
    m.floats("bias", {2}, {0.5, 0.25});
    for (const char* name : {"w", "scale", "bias"}) cast(m, name, std::string(name) + "16", onnx::TensorProto::FLOAT16);
    const bool plain = std::string(op).starts_with("Mean");
    onnx::NodeProto& node = m.node(op, plain ? Names{"w16"} : Names{"w16", "scale16", "bias16"}, {"y"});
    if (plain) setIntegers(node, "axes", {2});
    if (!plain) setFloat(node, "epsilon", 1e-8f);
    if (std::string(op).starts_with("Group")) setInteger(node, "num_groups", 2);
    sum(m, "y");
    EXPECT_EQ(lossOf(m), plain ? 0 : 1.5) << op;
  }
}

// stash_type = 1: f32, whatever the input's type.
TEST(Specification, StatisticsOfLayerNormalizationAreOfF32) {
  ModelBuilder m = summing(17);
  m.floats("w", {1, 2}, {1, 3});
  m.floats("scale", {2}, {1, 1});
  cast(m, "w", "w16", onnx::TensorProto::FLOAT16);
  cast(m, "scale", "scale16", onnx::TensorProto::FLOAT16);
  m.node("LayerNormalization", {"w16", "scale16"}, {"normal", "mean", "inverse"});
  m.node("Add", {"mean", "w"}, {"y"});
  sum(m, "y");
  EXPECT_EQ(lossOf(m), 8);
}

// A label to ignore that the labels' type does not have.
TEST(Specification, AnIgnoredLabelBeyondTheLabelsTypeIsNone) {
  for (int64_t ignored : {INT64_MIN, int64_t(1) << 32, int64_t(1)}) {
    ModelBuilder m = summing(13);
    m.floats("w", {2, 2}, {0, 0, 0, 0});
    m.integers("labels", {2}, {0, 1});
    cast(m, "labels", "narrow", onnx::TensorProto::INT32);
    onnx::NodeProto& node = m.node("SoftmaxCrossEntropyLoss", {"w", "narrow"}, {"y"});
    setInteger(node, "ignore_index", ignored);
    setString(node, "reduction", "sum");
    sum(m, "y");
    EXPECT_NEAR(lossOf(m), (ignored == 1 ? 1 : 2) * M_LN2, 1e-12) << ignored;
  }
}

// ONNX's texts: "x if x >= alpha else 0" of recurrent operators, "y = x for x > alpha" of ThresholdedRelu.
TEST(Specification, AThresholdBelongsToARecurrencesActivation) {
  ModelBuilder recurrent = ModelBuilder::unary("RNN", 14, {1, 1, 1}, {2}, {"W", "R"});
  recurrent.floats("W", {1, 1, 1}, {1});
  recurrent.floats("R", {1, 1, 1}, {0});
  setInteger(first(recurrent), "hidden_size", 1);
  setStrings(first(recurrent), "activations", {"ThresholdedRelu"});
  onnx::AttributeProto& alpha = *first(recurrent).add_attribute();
  alpha.set_name("activation_alpha");
  alpha.set_type(onnx::AttributeProto::FLOATS);
  alpha.add_floats(2);
  EXPECT_EQ(lossOf(recurrent), 2);
  alpha.set_floats(0, 3);
  EXPECT_EQ(lossOf(recurrent), 0);
  ModelBuilder alone = ModelBuilder::unary("ThresholdedRelu", 14, {1}, {2});
  setFloat(first(alone), "alpha", 2);
  EXPECT_EQ(lossOf(alone), 0);
}

TEST(Specification, ASignalIsRealOrComplex) {
  ModelBuilder m = ModelBuilder::unary("STFT", 17, {1, 16, 3}, std::vector<float>(48, 1), {"step", "", "length"});
  m.integers("step", {}, {4});
  m.integers("length", {}, {8});
  EXPECT_THAT(errorOf(m), HasSubstr("signal [batch, length, 1 or 2]"));
}

TEST(Specification, ATriluDiagonalFarOutsideKeepsAllOrNothing) {
  auto kept = [](int64_t k, int64_t upper) {
    ModelBuilder m = ModelBuilder::unary("Trilu", 14, {2, 3}, {1, 2, 3, 4, 5, 6}, {"k"});
    setInteger(first(m), "upper", upper);
    m.integers("k", {}, {k});
    return m;
  };
  const auto nothing = HasSubstr("the loss depends on no parameter");
  EXPECT_THAT(errorOf(kept(INT64_MAX, 1)), nothing);
  EXPECT_THAT(errorOf(kept(INT64_MIN, 0)), nothing);
  EXPECT_EQ(lossOf(kept(INT64_MAX, 0)), 21);
  EXPECT_EQ(lossOf(kept(INT64_MIN, 1)), 21);
  EXPECT_EQ(lossOf(kept(2, 1)), 3);
  EXPECT_EQ(lossOf(kept(-1, 0)), 4);
}

TEST(Specification, TileKeepsToTheRanksOfPlans) {
  for (std::vector<int64_t> repeats :
       {std::vector<int64_t>{2, 2, 2, 2, 2}, {1, 3, 1, 1, 2}, {3, 1, 2, 1, 2}, {1, 2, 2, 3, 2}}) {
    ModelBuilder m;
    m.input("x", {"N"}).output("loss", {});
    std::vector<float> data(32);
    for (int i = 0; i < 32; ++i) data[i] = float(i);
    m.floats("w", {2, 2, 2, 2, 2}, data);
    m.integers("repeats", {5}, repeats);
    std::vector<int64_t> shape, weights;
    int64_t count = 1;
    for (int64_t r : repeats) shape.push_back(2 * r), count *= 2 * r;
    double expected = 0;
    for (int64_t p = 0; p < count; ++p) {
      int64_t rest = p, from = 0;
      for (int d = 4, stride = 1; d >= 0; --d, stride *= 2) {
        from += rest % shape[d] % 2 * stride;
        rest /= shape[d];
      }
      weights.push_back(p * p % 101);
      expected += double(weights.back() * from);
    }
    m.integers("weights", shape, weights);
    m.node("Tile", {"w", "repeats"}, {"t"});
    setInteger(m.node("Cast", {"weights"}, {"c"}), "to", onnx::TensorProto::FLOAT);
    m.node("Mul", {"t", "c"}, {"y"});
    setInteger(m.node("ReduceSum", {"y"}, {"sum"}), "keepdims", 0);
    setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
    m.node("Add", {"sum", "zero"}, {"loss"});
    EXPECT_EQ(lossOf(m), expected);
    Imported imported = import(m, withBatch(1));
    ASSERT_TRUE(imported.module);
    imported.module->walk([](mlir::Operation* op) {
      for (mlir::Value v : op->getResults())
        if (auto type = mlir::dyn_cast<mlir::RankedTensorType>(v.getType())) {
          EXPECT_LE(type.getRank(), train::kMaxPlanRank);
        }
    });
  }
}

// ONNX Runtime divides by the weights of the labels that count only if these are not 0.
TEST(Specification, GradientsOfOnlyIgnoredLabelsAreZero) {
  ModelBuilder m = summing(13);
  m.model.add_opset_import()->set_domain("com.microsoft");
  m.model.mutable_opset_import(1)->set_version(1);
  m.floats("w", {2, 2}, {-1, -1, -1, -1});
  m.floats("gradient", {}, {1});
  m.integers("labels", {2}, {-100, -100});
  onnx::NodeProto& node = m.node("SoftmaxCrossEntropyLossGrad", {"gradient", "w", "labels"}, {"y"}, "com.microsoft");
  setInteger(node, "ignore_index", -100);
  sum(m, "y");
  EXPECT_EQ(lossOf(m), 0);
}

}  // namespace
}  // namespace sheaf::test
