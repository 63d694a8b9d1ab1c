// Attention's masks and windows at the edges of what ONNX's specification says.
#include <gmock/gmock.h>

#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

namespace sheaf::test {
namespace {

constexpr int64_t kQueries = 2, kKeys = 3;

// Scores are 0, so that a result is the mean of the values, 1, 10 and 100, of the keys that a query sees. The loss is
// the result of the first query and a thousand times that of the second.
ModelBuilder attention(int64_t opset, const std::string& mask = "") {
  ModelBuilder m(opset);
  m.input("x", {"N"}).output("loss", {});
  m.floats("q", {1, 1, kQueries, 1}, {0, 0});
  m.floats("k", {1, 1, kKeys, 1}, {1, 2, 3});
  m.floats("v", {1, 1, kKeys, 1}, {1, 10, 100});
  m.floats("factors", {1, 1, kQueries, 1}, {1, 1000});
  Names inputs{"q", "k", "v"};
  if (!mask.empty()) inputs.push_back(mask);
  m.node("Attention", inputs, {"y"});
  m.node("Mul", {"y", "factors"}, {"z"});
  setInteger(m.node("ReduceSum", {"z"}, {"sum"}), "keepdims", 0);
  setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
  m.node("Add", {"sum", "zero"}, {"loss"});
  return m;
}

TEST(Attention, WindowsLargerThanTheSequenceHideNothing) {
  const int64_t largest = std::numeric_limits<int64_t>::max();
  for (int64_t size : {kKeys, int64_t(1) << 31, int64_t(1) << 40, largest - 1, largest}) {
    SCOPED_TRACE(size);
    for (const char* side : {"left_window_size", "right_window_size"})
      for (bool causal : {false, true}) {
        SCOPED_TRACE(std::string(side) + (causal ? " causal" : ""));
        ModelBuilder m = attention(25);
        onnx::NodeProto& node = *m.graph().mutable_node(0);
        setInteger(node, side, size);
        if (causal) setInteger(node, "is_causal", 1);
        EXPECT_NEAR(lossOf(m), causal ? 1 + 5.5e3 : 37 + 37e3, 1e-9);
      }
  }
}

// As many keys as queries: a window becomes an attribute of the operation.
TEST(Attention, CausalWindowsOfSquareScores) {
  const int64_t largest = std::numeric_limits<int64_t>::max();
  for (auto [size, loss] : {std::pair<int64_t, double>{0, 1 + 10e3 + 100e6},
                            {1, 1 + 5.5e3 + 55e6},
                            {2, 1 + 5.5e3 + 37e6},
                            {largest, 1 + 5.5e3 + 37e6}}) {
    SCOPED_TRACE(size);
    ModelBuilder m(25);
    m.input("x", {"N"}).output("loss", {});
    m.floats("q", {1, 1, kKeys, 1}, {0, 0, 0});
    m.floats("k", {1, 1, kKeys, 1}, {1, 2, 3});
    m.floats("v", {1, 1, kKeys, 1}, {1, 10, 100});
    m.floats("factors", {1, 1, kKeys, 1}, {1, 1e3, 1e6});
    onnx::NodeProto& node = m.node("Attention", {"q", "k", "v"}, {"y"});
    setInteger(node, "left_window_size", size);
    setInteger(node, "is_causal", 1);
    m.node("Mul", {"y", "factors"}, {"z"});
    setInteger(m.node("ReduceSum", {"z"}, {"sum"}), "keepdims", 0);
    setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
    m.node("Add", {"sum", "zero"}, {"loss"});
    EXPECT_NEAR(lossOf(m), loss, 1e-6);
  }
}

// Opset 24: "The last dimension can also be shorter than total_sequence_length and will be padded to
// total_sequence_length with negative infinity." Opset 23 only says that the shape must be broadcastable.
TEST(Attention, AMaskOfOneKeyIsPaddedSinceOpset24) {
  for (int64_t opset : {23, 24, 25}) {
    SCOPED_TRACE(opset);
    ModelBuilder m = attention(opset, "mask");
    m.floats("mask", {kQueries, 1}, {0, 0.5});
    EXPECT_NEAR(lossOf(m), opset == 23 ? 37 + 37e3 : 1 + 1e3, 1e-9);
  }
  ModelBuilder m = attention(25, "mask");
  m.floats("mask", {kQueries, 2}, {0, 0, 0, 0});
  EXPECT_NEAR(lossOf(m), 5.5 + 5.5e3, 1e-9);
}

}  // namespace
}  // namespace sheaf::test
