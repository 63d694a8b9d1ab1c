// Gradients at kinks, bounds and ties: PyTorch's, of the function that a node was exported from.
#include <gmock/gmock.h>

#include <cmath>

#include "ir/Train/Evaluator.h"
#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

namespace sheaf::test {
namespace {

using Numbers = std::vector<double>;

// The gradient of the sum of the result with respect to the parameter `w`.
Numbers gradientOf(const ModelBuilder& m) {
  const std::string path = m.save();
  Imported imported = import(path, withBatch(1));
  if (!imported.module) return {};
  mlir::PassManager passes(imported.context.get());
  passes.addPass(train::createDifferentiate());
  if (mlir::failed(passes.run(*imported.module))) return {};
  auto step = imported.module->lookupSymbol<mlir::func::FuncOp>("step");
  std::vector<train::Tensor> arguments;
  for (mlir::Type type : step.getArgumentTypes())
    arguments.push_back(train::Tensor::zeros(mlir::cast<mlir::RankedTensorType>(type)));
  auto result = train::evaluateFunction(step, arguments, readParameters(*imported.module, modelFolder()));
  return mlir::succeeded(result) ? result->gradients.at("w").f : Numbers();
}

struct Kink {
  std::string op;
  std::vector<float> at;
  Numbers gradient;
  std::string call = "";                      // that the node's metadata name
  std::map<std::string, float> numbers = {};  // attributes
};

std::string described(const Kink& k) {
  return k.op + " " + k.call;
}

void check(const Kink& k, ModelBuilder m) {
  onnx::NodeProto& node = *m.graph().mutable_node(0);
  if (!k.call.empty())
    setMetadata(*node.mutable_metadata_props(), "pkg.torch.onnx.fx_node",
                "%y : call_function[target=torch.ops.aten." + k.call + ", kwargs = {})");
  for (const auto& [name, value] : k.numbers) setFloat(node, name, value);
  const Numbers found = gradientOf(m);
  ASSERT_EQ(found.size(), k.gradient.size()) << described(k);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], k.gradient[i], 1e-6) << described(k) << " at " << k.at[i];
}

TEST(Ties, ActivationsHaveOneSidesSlope) {
  const Kink kinks[] = {
      {"Relu", {0, -0.0f, 1}, {0, 0, 1}},
      {"Abs", {0, -1}, {0, -1}},
      {"Softplus", {0, -0.0f}, {0.5, 0.5}},
      {"Softplus", {-17}, {4.1399376e-8}},
      {"Mish", {0}, {0.6}},
      {"Elu", {0, -0.0f, 1}, {1, 1, 1}},
      {"Elu", {0}, {2}, "", {{"alpha", 2}}},
      {"Celu", {0}, {1}, "", {{"alpha", 2}}},
      {"Selu", {0}, {1.7580993}},
      {"LeakyRelu", {0}, {0.01}},
      {"ThresholdedRelu", {1, 2}, {0, 1}},
      {"Softsign", {0}, {1}},
      {"Shrink", {0.5, -0.5, 1}, {0, 0, 1}},
      {"HardSigmoid", {-2.5, 0, 2.5}, {0, 0.2, 0}},
      {"HardSwish", {-3, 0, 3}, {0, 0.5, 1}},
  };
  for (const Kink& k : kinks) check(k, ModelBuilder::unary(k.op, 20, {int64_t(k.at.size())}, k.at));
}

// Limits of 0 and 1, as inputs and as attributes.
TEST(Ties, ClampHasNoGradientAtItsLimits) {
  const std::vector<float> at{-1, 0, 0.5, 1, 2};
  const Numbers clamped{0, 0, 1, 0, 0}, shared{0, 0.5, 1, 0.5, 0};
  const Kink kinks[] = {
      {"Clip", at, clamped},
      {"Clip", at, clamped, "relu6.default](args = (%x,)"},
      {"Clip", at, clamped, "clamp.Tensor](args = (%x, %scalar_tensor_default, %scalar_tensor_default_1)"},
      {"Clip", at, clamped, "clamp.default](args = (%x, 0, 1)"},
      // Limits that are tensors.
      {"Clip", at, shared, "clamp.Tensor](args = (%x, %low, %high)"},
  };
  for (const Kink& k : kinks) {
    ModelBuilder m = ModelBuilder::unary("Clip", 13, {5}, at, {"low", "high"});
    m.floats("low", {}, {0});
    m.floats("high", {}, {1});
    check(k, m);
  }
  check({"Clip", at, clamped, "", {{"min", 0}, {"max", 1}}}, ModelBuilder::unary("Clip", 7, {5}, at));
}

TEST(Ties, MaximumSharesAndAScalarLimitDoesNot) {
  struct Extremum {
    Kink kink;
    std::vector<int64_t> dims;  // the shape of the constant 0
    bool first = false;         // the constant is the first operand
  };
  const std::string clamp = "clamp_min.Tensor](args = (%x, %scalar_tensor_default)";
  const Extremum extrema[] = {
      {{"Max", {0, 1}, {0, 1}}, {}},
      {{"Max", {0, 1}, {0, 1}}, {}, true},
      {{"Max", {0, 1}, {0, 1}, clamp}, {}},
      {{"Max", {0, 1}, {0.5, 1}, "maximum.default](args = (%x, %c)"}, {}},
      {{"Max", {0, 1}, {0.5, 1}}, {1}},
      {{"Min", {0, -1}, {0, 1}}, {}},
      {{"Min", {0, -1}, {0.5, 1}, "minimum.default](args = (%x, %c)"}, {}},
      {{"Min", {0, -1}, {0.5, 1}}, {1}},
  };
  for (const Extremum& e : extrema) {
    ModelBuilder m = ModelBuilder::unary(e.kink.op, 13, {2}, e.kink.at, {"c"});
    if (e.first) {
      m.graph().mutable_node(0)->set_input(0, "c");
      m.graph().mutable_node(0)->set_input(1, "w");
    }
    m.floats("c", e.dims, {0});
    check(e.kink, m);
  }
}

TEST(Ties, MaximumAlongADimensionTakesTheFirst) {
  const std::vector<float> at{1, 5, 5, 2, 2, 2}, opposite{-1, -5, -5, -2, -2, -2};
  const Numbers shared{0, 0.5, 0.5, 1.0 / 3, 1.0 / 3, 1.0 / 3}, first{0, 1, 0, 1, 0, 0};
  struct Reduction {
    Kink kink;
    const char* indices = nullptr;  // another operator on the same operand
  };
  const Reduction reductions[] = {
      {{"ReduceMax", at, shared}},
      {{"ReduceMax", at, shared, "amax.default](args = (%x, [1])"}},
      {{"ReduceMax", at, first, "max.dim](args = (%x, 1)"}},
      {{"ReduceMax", at, first}, "ArgMax"},
      {{"ReduceMax", at, shared}, "ArgMin"},
      {{"ReduceMin", opposite, first, "min.dim](args = (%x, 1)"}},
      {{"ReduceMin", opposite, first}, "ArgMin"},
  };
  for (const Reduction& r : reductions) {
    ModelBuilder m = ModelBuilder::unary(r.kink.op, 18, {2, 3}, r.kink.at, {"axes"});
    m.integers("axes", {1}, {1});
    if (r.indices) setInteger(m.node(r.indices, {"w"}, {"indices"}), "axis", -1);
    check(r.kink, m);
  }
  check({"GlobalMaxPool", at, first}, ModelBuilder::unary("GlobalMaxPool", 20, {1, 2, 1, 3}, at));
}

// Positions in a row of the pixels 1, 3, 7, 15.
TEST(Ties, GridSampleHasNoGradientAtItsBorders) {
  struct Grid {
    std::string padding;
    int64_t corners;
    std::vector<float> at;
    Numbers gradient;
    std::string mode = "linear";
  };
  const Grid grids[] = {
      {"border", 1, {-1, 1, 0, -2, 2}, {0, 0, 6, 0, 0}},
      {"border", 0, {-0.75, 0.75, 0, -1, 1}, {0, 0, 8, 0, 0}},
      {"reflection", 1, {-1, 1, 0, -2, 2, 3, -3}, {0, 0, 6, -6, -6, 0, 0}},
      {"reflection", 0, {-0.75, 0.75, 0, -1, 1, -1.25, 1.25, -1.5}, {0, 0, 8, 0, 0, 0, 0, -4}},
      {"zeros", 1, {-1, 0}, {3, 6}},
      // A cubic position is not clipped first: the slope is that of the cubic, 1.5 * 0.75 * (3 - 1).
      {"border", 1, {-1}, {2.25}, "cubic"},
  };
  for (const Grid& g : grids) {
    const int64_t count = int64_t(g.at.size());
    ModelBuilder m = ModelBuilder::unary("GridSample", 20, {1, count, 1}, g.at, {"w"});
    m.floats("image", {1, 1, 4}, {1, 3, 7, 15});
    onnx::NodeProto& node = *m.graph().mutable_node(0);
    node.set_input(0, "image");
    setString(node, "mode", g.mode);
    setString(node, "padding_mode", g.padding);
    setInteger(node, "align_corners", g.corners);
    check({"GridSample " + g.padding + " " + std::to_string(g.corners), g.at, g.gradient}, m);
  }
}

TEST(Ties, NormsOfZeroHaveNoGradient) {
  for (const char* op : {"ReduceL2", "ReduceL1", "GlobalLpPool"}) {
    const bool pool = std::string(op) == "GlobalLpPool";
    ModelBuilder m =
        ModelBuilder::unary(op, 18, pool ? std::vector<int64_t>{1, 1, 2} : std::vector<int64_t>{2}, {0, 0});
    check({op, {0, 0}, {0, 0}}, m);
  }
}

// Compositions that exporters write: the node under test reads what another one computes of `w`.
TEST(Ties, CompositionsAreKnown) {
  auto composed = [](std::vector<float> at, auto build) {
    ModelBuilder m(20);
    m.floats("w", {int64_t(at.size())}, at);
    m.floats("one", {}, {1});
    m.input("x", {"N"}).output("loss", {});
    build(m);
    setInteger(m.node("ReduceSum", {"y"}, {"sum"}), "keepdims", 0);
    setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
    m.node("Add", {"sum", "zero"}, {"loss"});
    return gradientOf(m);
  };
  // log(sigmoid(x)) and log(1 - sigmoid(x)).
  EXPECT_THAT(composed({-2000},
                       [](ModelBuilder& m) {
                         m.node("Sigmoid", {"w"}, {"s"});
                         m.node("Log", {"s"}, {"y"});
                       }),
              testing::ElementsAre(testing::DoubleNear(1, 1e-9)));
  EXPECT_THAT(composed({2000},
                       [](ModelBuilder& m) {
                         m.node("Sigmoid", {"w"}, {"s"});
                         m.node("Sub", {"one", "s"}, {"c"});
                         m.node("Log", {"c"}, {"y"});
                       }),
              testing::ElementsAre(testing::DoubleNear(-1, 1e-9)));
  // atan2(w, w) at the origin.
  EXPECT_THAT(composed({0, 2},
                       [](ModelBuilder& m) {
                         m.node("Abs", {"w"}, {"a"});
                         m.node("Div", {"w", "a"}, {"r"});
                         m.node("Atan", {"r"}, {"y"});
                       }),
              testing::ElementsAre(0, testing::DoubleNear(0, 1e-9)));
  // x log(x), unselected where x is 0.
  EXPECT_THAT(composed({0, 4},
                       [](ModelBuilder& m) {
                         m.floats("none", {}, {0});
                         m.node("Equal", {"w", "none"}, {"isZero"});
                         m.node("Log", {"w"}, {"l"});
                         m.node("Mul", {"w", "l"}, {"p"});
                         m.node("Where", {"isZero", "none", "p"}, {"y"});
                       }),
              testing::ElementsAre(0, testing::DoubleNear(1 + std::log(4), 1e-9)));
}

}  // namespace
}  // namespace sheaf::test
