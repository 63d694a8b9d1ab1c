// A perplexity is exp of the mean over the labels that count, and of nothing else.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "test/frontend/ModelBuilder.h"

namespace sheaf::test {
namespace {

TEST(Perplexity, IsOfTheMeanOverLabels) {
  auto all = [](const char* op, const char* from, const char* to) {
    return [=](ModelBuilder& m) { setInteger(m.node(op, {from}, {to}), "keepdims", 0); };
  };
  auto along = [](const char* op, int64_t axis, const char* from, const char* to) {
    return [=](ModelBuilder& m) {
      const std::string axes = std::string(to) + ".axes";
      m.integers(axes, {1}, {axis});
      setInteger(m.node(op, {from, axes}, {to}), "keepdims", 0);
    };
  };
  auto binary = [](const char* op, const char* a, const char* b, const char* to) {
    return [=](ModelBuilder& m) { m.node(op, {a, b}, {to}); };
  };
  auto by = [](const char* op, const char* from, float number, const char* to) {
    return [=](ModelBuilder& m) {
      const std::string name = std::string(to) + "_number";
      m.graph().mutable_initializer()->Add()->CopyFrom(floatTensor(name, {}, {number}));
      m.node(op, {from, name}, {to});
    };
  };
  // 1 where the label is not -1, or is above 0.
  auto mask = [](const char* op) {
    return [=](ModelBuilder& m) {
      m.integers("number", {}, {std::string(op) == "Equal" ? -1 : 0});
      m.node(op, {"labels", "number"}, {"chosen"});
      const bool inverted = std::string(op) == "Equal";
      if (inverted) m.node("Not", {"chosen"}, {"kept"});
      setInteger(m.node("Cast", {inverted ? "kept" : "chosen"}, {"mask"}), "to", onnx::TensorProto::FLOAT);
    };
  };
  auto counted = [](ModelBuilder& m) {
    setInteger(m.node("Cast", {"kept"}, {"ones"}), "to", onnx::TensorProto::INT64);
    setInteger(m.node("ReduceSum", {"ones"}, {"count"}), "keepdims", 0);
    setInteger(m.node("Cast", {"count"}, {"number of"}), "to", onnx::TensorProto::FLOAT);
  };
  struct {
    std::vector<std::function<void(ModelBuilder&)>> nodes;
    bool ignores, perplexity;
  } const kinds[] = {
      {{all("ReduceMean", "l", "loss")}, false, true},
      {{all("ReduceMean", "l", "loss")}, true, false},  // labels that are ignored count, too
      {{along("ReduceMean", 1, "l", "a"), all("ReduceMean", "a", "loss")}, false, true},
      {{along("ReduceSum", 1, "l", "a"), all("ReduceMean", "a", "loss")}, false, false},
      {{all("ReduceSum", "l", "loss")}, false, false},
      {{all("ReduceSum", "l", "a"), by("Div", "a", 48, "loss")}, false, true},
      {{all("ReduceSum", "l", "a"), by("Mul", "a", 1.0f / 48, "loss")}, false, true},
      {{all("ReduceSum", "l", "a"), by("Div", "a", 8, "loss")}, false, false},
      {{along("ReduceSum", 1, "l", "s"), by("Div", "s", 6, "a"), all("ReduceMean", "a", "loss")}, false, true},
      {{all("ReduceMean", "l", "a"), by("Div", "a", 0.6931472f, "loss")}, false, false},
      {{all("ReduceMean", "l", "a"), by("Div", "a", 4, "loss")}, false, false},
      {{mask("Equal"), all("ReduceSum", "l", "a"), all("ReduceSum", "mask", "b"), binary("Div", "a", "b", "loss")},
       true,
       true},
      {{mask("Equal"), all("ReduceMean", "l", "a"), all("ReduceMean", "mask", "b"), binary("Div", "a", "b", "loss")},
       true,
       true},
      {{mask("Equal"), counted, all("ReduceSum", "l", "a"), binary("Div", "a", "number of", "loss")}, true, true},
      {{mask("Equal"), all("ReduceMean", "l", "a"), all("ReduceSum", "mask", "b"), binary("Div", "a", "b", "loss")},
       true,
       false},
      {{mask("Greater"), all("ReduceSum", "l", "a"), all("ReduceSum", "mask", "b"), binary("Div", "a", "b", "loss")},
       true,
       false},
      {{mask("Greater"), binary("Mul", "l", "mask", "k"), all("ReduceSum", "k", "a"), all("ReduceSum", "mask", "b"),
        binary("Div", "a", "b", "loss")},
       false,
       true},
      {{mask("Greater"), binary("Mul", "l", "mask", "k"), all("ReduceSum", "k", "a"), all("ReduceSum", "mask", "b"),
        binary("Div", "a", "b", "loss")},
       true,
       false},
      {{mask("Greater"), binary("Mul", "l", "mask", "k"), all("ReduceMean", "k", "loss")}, false, false},
      {{binary("Mul", "l", "given", "k"), all("ReduceSum", "k", "a"), all("ReduceSum", "given", "b"),
        binary("Div", "a", "b", "loss")},
       false,
       false},
  };
  for (const auto& kind : kinds) {
    SCOPED_TRACE(&kind - kinds);
    ModelBuilder m;
    m.input("x", {"N", 4, 6}).input("labels", {"N", 6}, onnx::TensorProto::INT64).input("given", {"N", 6});
    m.floats("w", {4, 1}, {1, 2, 3, 4});
    m.output("loss", {});
    m.node("Mul", {"x", "w"}, {"y"});
    onnx::NodeProto& entropy = m.node("SoftmaxCrossEntropyLoss", {"y", "labels"}, {"l"});
    setString(entropy, "reduction", "none");
    if (kind.ignores) setInteger(entropy, "ignore_index", -1);
    for (const auto& node : kind.nodes) node(m);
    Imported imported = import(m, withBatch(8));
    ASSERT_TRUE(imported.module) << (imported.errors.empty() ? "" : imported.errors[0]);
    auto step = imported.module->lookupSymbol<mlir::func::FuncOp>("step");
    for (unsigned i = 0; i < step.getNumArguments(); ++i) {
      if (step.getArgAttrOfType<mlir::StringAttr>(i, "train.name") != "labels") continue;
      EXPECT_EQ(bool(step.getArgAttr(i, "train.perplexity")), kind.perplexity);
    }
  }
}

}  // namespace
}  // namespace sheaf::test
