// Windows and products at the edges of what ONNX's specification allows.
#include <gmock/gmock.h>

#include <cmath>

#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

onnx::NodeProto& first(ModelBuilder& m) {
  return *m.graph().mutable_node(0);
}

// Each has one place, at the start, over [1, 2, 3, 4]: the mean of its result would be another with a second one.
TEST(Windows, APoolingWithCeilModeHasTheSpecifiedPlaces) {
  const struct {
    std::string op;
    int64_t kernel, stride, dilation, pad, p;
    double mean;
  } cases[] = {
      // floor((4 + 3 - 2) / 5) + 1 = 2 places, but the second starts in the padding at the end.
      {"AveragePool", 2, 5, 1, 3, 0, 1.5},
      {"MaxPool", 2, 5, 1, 3, 0, 2},
      {"LpPool", 2, 5, 1, 3, 2, std::sqrt(5)},
      {"LpPool", 2, 5, 1, 3, 1, 3},
      {"AveragePool", 2, 4, 1, 2, 0, 1.5},
      // ceil((4 - 5) / 2) + 1 = 1 place, which sees the elements 0 and 2.
      {"MaxPool", 3, 2, 2, 0, 0, 3},
      {"AveragePool", 3, 2, 2, 0, 0, 2},
      {"LpPool", 3, 2, 2, 0, 1, 4},
      // 1 place of the elements 0 and 3.
      {"MaxPool", 3, 4, 3, 0, 0, 4},
      {"AveragePool", 3, 4, 3, 0, 0, 2.5},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.op + " " + std::to_string(c.kernel) + " " + std::to_string(c.dilation));
    ModelBuilder m = ModelBuilder::unary(c.op, 22, {1, 1, 4}, {1, 2, 3, 4});
    setIntegers(first(m), "kernel_shape", {c.kernel});
    setIntegers(first(m), "strides", {c.stride});
    setIntegers(first(m), "dilations", {c.dilation});
    setIntegers(first(m), "pads", {0, c.pad});
    setInteger(first(m), "ceil_mode", 1);
    if (c.p) setInteger(first(m), "p", c.p);
    m.graph().mutable_node(1)->set_op_type("ReduceMean");
    EXPECT_NEAR(lossOf(m), c.mean, 1e-6);
  }
  // ceil((4 - 7) / 2) + 1 = 0 places.
  ModelBuilder none = ModelBuilder::unary("MaxPool", 22, {1, 1, 4}, {1, 2, 3, 4});
  setIntegers(first(none), "kernel_shape", {3});
  setIntegers(first(none), "strides", {2});
  setIntegers(first(none), "dilations", {3});
  setInteger(first(none), "ceil_mode", 1);
  EXPECT_THAT(errorOf(none), HasSubstr("the window is larger than its padded input"));
}

// "If (auto_pads != SAME_UPPER): pads[start_i] = total_padding[i]/2" of version 1 became "If (auto_pads ==
// SAME_UPPER)".
TEST(Windows, TheOddPaddingOfATransposedConvolutionDependsOnTheVersion) {
  const struct {
    int64_t opset;
    const char* automatic;
    double sum;  // the sum of [1, 10, 100, 1000] without its last or its first
  } cases[] = {{10, "NOTSET", 111},  {10, "SAME_LOWER", 111},  {10, "SAME_UPPER", 1110},
               {11, "NOTSET", 1110}, {11, "SAME_LOWER", 1110}, {11, "SAME_UPPER", 111}};
  for (const auto& c : cases) {
    ModelBuilder m = ModelBuilder::unary("ConvTranspose", c.opset, {1, 1, 1}, {1}, {"f"});
    m.floats("f", {1, 1, 4}, {1, 10, 100, 1000});
    setIntegers(first(m), "output_shape", {3});
    setString(first(m), "auto_pad", c.automatic);
    EXPECT_EQ(lossOf(m), c.sum) << c.opset << c.automatic;
  }
}

// A product over an inner dimension of 0 is 0, and one without rows has no elements.
TEST(Products, OfNothing) {
  const struct {
    std::string op;
    std::vector<int64_t> a, b;
    double rows;  // the result's, with 4 elements each
  } cases[] = {{"MatMul", {2, 3, 0}, {0, 4}, 6},
               {"MatMul", {3, 0}, {0, 4}, 3},
               {"MatMul", {0}, {0, 4}, 1},
               {"MatMul", {5, 3, 0}, {5, 0, 4}, 15},
               {"MatMul", {3, 0}, {5, 0, 4}, 15},
               {"MatMul", {0, 3, 2}, {0, 2, 4}, 0},
               {"MatMul", {0, 3, 2}, {2, 4}, 0},
               {"MatMul", {0, 2}, {2, 4}, 0},
               {"Gemm", {3, 0}, {0, 4}, 3},
               {"Gemm", {0, 2}, {2, 4}, 0},
               {"ij,jk->ik", {3, 0}, {0, 4}, 3},
               {"bij,bjk->bik", {5, 3, 0}, {5, 0, 4}, 15},
               {"bij,bjk->bik", {0, 3, 2}, {0, 2, 4}, 0}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.op);
    ModelBuilder m;
    m.input("x", {"N"}).output("loss", {});
    m.floats("w", {4}, {1, 2, 3, 4});
    auto ones = [&](const std::string& name, const std::vector<int64_t>& dims) {
      int64_t count = 1;
      for (int64_t d : dims) count *= d;
      m.integers(name + ".i", dims, std::vector<int64_t>(size_t(count), 1));
      setInteger(m.node("Cast", {name + ".i"}, {name}), "to", onnx::TensorProto::FLOAT);
    };
    ones("a", c.a);
    ones("b", c.b);
    const bool einsum = c.op.find('>') != std::string::npos;
    onnx::NodeProto& node = m.node(einsum ? "Einsum" : c.op, {"a", "b"}, {"y"});
    if (einsum) setString(node, "equation", c.op);
    m.node("Add", {"y", "w"}, {"z"});
    setInteger(m.node("ReduceSum", {"z"}, {"sum"}), "keepdims", 0);
    setInteger(m.node("ReduceSum", {"w"}, {"own"}), "keepdims", 0);
    setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
    m.node("Sum", {"sum", "own", "zero"}, {"loss"});
    EXPECT_EQ(lossOf(m), 10 * (c.rows + 1));
  }
}

// Planes are counted before any op is made of them.
TEST(Windows, AFilterOfTooManyPlanesIsRefused) {
  ModelBuilder m = ModelBuilder::unary("Conv", 22, {1, 1, 1, 1, 1}, {1}, {"f"});
  m.floats("f", {1, 1, 65536, 1, 1}, std::vector<float>(65536, 1));
  setIntegers(first(m), "pads", {65535, 0, 0, 0, 0, 0});
  EXPECT_THAT(errorOf(m), HasSubstr("expand to more than"));
}

}  // namespace
}  // namespace sheaf::test
