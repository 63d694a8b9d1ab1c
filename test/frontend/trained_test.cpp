// Decides what is trained: operands that are settings, buffers that look like parameters, numbers, weights in Constant
// nodes; and where PyTorch's detach and padding_idx stop the gradient.
#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "frontend/onnx/export/Export.h"
#include "frontend/onnx/importer/OperandRoles.h"
#include "frontend/onnx/ops/Registry.h"
#include "ir/Train/StopGradient.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

namespace sheaf::test {
namespace {

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return all;
}

// The line about what is trained and may be a buffer.
std::string possibleBuffers(Imported& i) {
  const std::string all = i.decisions(), begin = "perhaps buffers: ";
  const size_t at = all.find(begin);
  return at == std::string::npos ? "" : all.substr(at + begin.size(), all.find('\n', at) - at - begin.size());
}

// y = x * w, and the loss is the mean of `value`.
ModelBuilder scaled() {
  ModelBuilder m;
  m.model.set_producer_name("pytorch");
  m.input("x", {"N", 4}).output("loss", {});
  m.floats("fc.weight", {4}, {1, 2, 3, 4});
  m.node("Mul", {"x", "fc.weight"}, {"y"});
  return m;
}
void finish(ModelBuilder& m, const std::string& value) {
  setInteger(m.node("ReduceMean", {value}, {"loss"}), "keepdims", 0);
}

// The gradients of the first step, for inputs of `at`.
std::map<std::string, train::Tensor> gradients(Imported& i, double at) {
  mlir::PassManager passes(i.context.get());
  passes.addPass(train::createDifferentiate());
  EXPECT_TRUE(mlir::succeeded(passes.run(*i.module)));
  auto step = i.module->lookupSymbol<mlir::func::FuncOp>("step");
  std::vector<train::Tensor> arguments;
  for (mlir::Type type : step.getArgumentTypes()) {
    arguments.push_back(train::Tensor::zeros(mlir::cast<mlir::RankedTensorType>(type)));
    for (double& x : arguments.back().f) x = at;
    for (size_t k = 0; k < arguments.back().i.size(); ++k) arguments.back().i[k] = int64_t(k);
  }
  i.module->walk([](train::StopGradientOp op) { ADD_FAILURE() << "train.stop_gradient is left"; });
  auto result = train::evaluateFunction(step, arguments, readParameters(*i.module, modelFolder()));
  EXPECT_TRUE(mlir::succeeded(result));
  return mlir::succeeded(result) ? result->gradients : std::map<std::string, train::Tensor>();
}

//===--- Settings ---===//

// A node that takes the tensor `s` as a setting, after `y` [N, 4] has been computed from a parameter.
struct SettingCase {
  const char* name;
  std::vector<int64_t> dims;
  std::vector<float> values;
  void (*add)(ModelBuilder& m, const std::string& s);
};

const SettingCase kSettings[] = {
    {"SoftmaxCrossEntropyLoss",
     {4},
     {1, 2, 3, 4},
     [](ModelBuilder& m, const std::string& s) {
       m.input("t", {"N"}, onnx::TensorProto::INT64);
       m.node("SoftmaxCrossEntropyLoss", {"y", "t", s}, {"z"});
     }},
    {"NegativeLogLikelihoodLoss",
     {4},
     {1, 2, 3, 4},
     [](ModelBuilder& m, const std::string& s) {
       m.input("t", {"N"}, onnx::TensorProto::INT64);
       m.node("LogSoftmax", {"y"}, {"l"});
       m.node("NegativeLogLikelihoodLoss", {"l", "t", s}, {"z"});
     }},
    // Written out: the labels choose the class weights, and the log-probabilities.
    {"Gather",
     {4},
     {1, 2, 3, 4},
     [](ModelBuilder& m, const std::string& s) {
       m.input("t", {"N", 1}, onnx::TensorProto::INT64);
       m.node("LogSoftmax", {"y"}, {"l"});
       setInteger(m.node("GatherElements", {"l", "t"}, {"p"}), "axis", 1);
       m.node("Gather", {s, "t"}, {"w"});
       m.node("Mul", {"w", "p"}, {"z"});
     }},
    {"Clip",
     {},
     {0.5},
     [](ModelBuilder& m, const std::string& s) {
       m.node("Clip", {"y", "", s}, {"z"});
     }},
    {"Pad",
     {},
     {0.5},
     [](ModelBuilder& m, const std::string& s) {
       m.integers("pads", {4}, {0, 1, 0, 1});
       m.node("Pad", {"y", "pads", s}, {"z"});
     }},
    {"Resize",
     {2},
     {1, 2},
     [](ModelBuilder& m, const std::string& s) {
       m.node("Resize", {"y", "", s}, {"z"});
     }},
};

// Also after nodes that only move or convert, and where the metadata call it a parameter that needs no gradient.
TEST(Trained, SettingsAreNoParameters) {
  for (const SettingCase& c : kSettings)
    for (const char* between : {"", "Identity", "Cast"})
      for (const char* kind : {"", "BUFFER"}) {
        SCOPED_TRACE(std::string(c.name) + " " + between + " " + kind);
        ModelBuilder m = scaled();
        // A limit of a member's name in PyTorch's exports is learned: see merged_parameters_test.cpp.
        if (std::string(c.name) == "Clip") m.model.set_producer_name("other");
        m.floats("m.setting", c.dims, c.values);
        std::string s = "m.setting";
        if (*between) {
          onnx::NodeProto& node = m.node(between, {s}, {"moved"});
          if (std::string(between) == "Cast") setInteger(node, "to", onnx::TensorProto::FLOAT);
          s = "moved";
        }
        c.add(m, s);
        finish(m, "z");
        if (*kind) {
          describe(m, "m.setting", kKind, kind);
          describe(m, "fc.weight", kKind, "PARAMETER");
        }
        Imported i = import(m, withBatch(4));
        ASSERT_TRUE(i.module);
        EXPECT_EQ(i.count("parameter"), 1);
        EXPECT_THAT(i.decisions(), HasSubstr("fc.weight: trainable"));
        EXPECT_THAT(possibleBuffers(i), Not(HasSubstr("m.setting")));
      }
}

// A table of one dimension that anything but labels looks up is trained, and named.
TEST(Trained, OtherTablesOfOneDimensionAreTrained) {
  ModelBuilder m = scaled();
  m.input("t", {"N", 1}, onnx::TensorProto::INT64);
  m.floats("m.rates", {4}, {1, 2, 3, 4});
  m.node("Gather", {"m.rates", "t"}, {"r"});
  m.node("Mul", {"y", "r"}, {"z"});
  finish(m, "z");
  Imported i = import(m, withBatch(4));
  EXPECT_THAT(i.decisions(), HasSubstr("m.rates: trainable"));
  EXPECT_THAT(possibleBuffers(i), HasSubstr("'m.rates' is trained"));
}

// Every operand of floats of every operator has a role; one that is a value like any other is in this list.
TEST(Trained, EveryOperandHasARole) {
  const std::set<std::string> values{"Add 1",
                                     "Sub 1",
                                     "Mul 1",
                                     "Div 1",
                                     "Pow 1",
                                     "Mod 1",
                                     "Sum 1",
                                     "Min 1",
                                     "Max 1",
                                     "Mean 1",
                                     "Equal 1",
                                     "Less 1",
                                     "LessOrEqual 1",
                                     "Greater 1",
                                     "GreaterOrEqual 1",
                                     "Where 1",
                                     "Where 2",
                                     "OneHot 2",
                                     "GridSample 1",
                                     "RotaryEmbedding 1",
                                     "RotaryEmbedding 2",
                                     "SwiGLU 1",
                                     "ScatterElements 2",
                                     "Scatter 2",
                                     "ScatterND 2",
                                     "TensorScatter 1",
                                     "STFT 2",
                                     "GatherElements 0",
                                     "ReduceSum 0"};
  for (const frontend::RegisteredOperator& op : frontend::registeredOperators()) {
    if (!op.supported() || op.domain != "ai.onnx" || op.sample.empty()) continue;
    onnx::ModelProto model;
    ASSERT_TRUE(model.ParseFromString(frontend::sampleModel(op))) << op.name;
    std::set<std::string> floats;
    for (const onnx::TensorProto& tensor : model.graph().initializer())
      if (frontend::isFloatType(tensor.data_type())) floats.insert(tensor.name());
    for (const onnx::NodeProto& node : model.graph().node()) {
      if (node.name() != frontend::kSampleNode) continue;
      for (int k = 1; k < node.input_size(); ++k) {
        if (!floats.count(node.input(k)) || frontend::operandRole(node, k) != frontend::OperandRole::value) continue;
        EXPECT_TRUE(values.count(op.name + " " + std::to_string(k)))
            << op.name << ": add operand " << k << " to kRows of OperandRoles.cpp, or here if it is a value";
      }
    }
  }
}

//===--- Buffers ---===//

TEST(Trained, WhatMayBeABufferIsNamedInOneLine) {
  ModelBuilder m = scaled();
  m.floats("final_logits_bias", {4}, {0, 0, 0, 0});
  m.floats("a.grid", {4}, {1, 2, 3, 4});
  m.floats("b.grid", {4}, {1, 2, 3, 4});
  m.floats("loss.weight", {4}, {1, 2, 3, 4});
  m.floats("a.norm.weight", {4}, {1, 1, 1, 1});
  m.floats("a.spline_weight", {4}, {1, 2, 3, 4});
  m.floats("m.pos_weight", {4}, {1, 2, 3, 4});
  m.floats("m.rope.inv_freq", {4, 1}, {1, 2, 3, 4});
  m.integers("positions", {1, 4}, {0, 1, 2, 3});
  setInteger(m.node("Cast", {"positions"}, {"p"}), "to", onnx::TensorProto::FLOAT);
  m.node("MatMul", {"m.rope.inv_freq", "p"}, {"angles"});
  m.floats("a.self_attn.in_proj_bias", {4}, {1, 2, 3, 4});
  m.floats("pos_embed.table", {4, 4}, std::vector<float>(16, 0.5f));
  m.integers("first", {1}, {0});
  m.integers("last", {1}, {4});
  m.floats("m.proj_matrix", {4, 4}, std::vector<float>(16, 0.5f));
  m.node("Transpose", {"m.proj_matrix"}, {"turned"});
  m.node("MatMul", {"y", "turned"}, {"v0"});
  std::string at = "v0";
  for (const char* name : {"final_logits_bias", "a.grid", "b.grid", "loss.weight", "m.pos_weight", "a.norm.weight",
                           "a.spline_weight", "a.self_attn.in_proj_bias", "angles"}) {
    m.node("Mul", {at, name}, {at + "'"});
    at += "'";
  }
  finish(m, at);
  Imported i = import(m, withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_THAT(
      possibleBuffers(i),
      HasSubstr(
          "'m.rope.inv_freq', 'final_logits_bias', 'a.grid', 'b.grid', 'loss.weight', 'm.pos_weight' are trained"));
  const std::string pattern = "(^|\\.)grid$|^(m\\.rope\\.inv_freq|final_logits_bias|loss\\.weight|m\\.pos_weight)$";
  EXPECT_THAT(possibleBuffers(i), HasSubstr("--freeze '" + pattern + "'"));
  // The option does what the line says, and then there is nothing to say.
  frontend::ImportOptions options = withBatch(4);
  options.freeze = {pattern};
  Imported j = import(m, options);
  EXPECT_EQ(possibleBuffers(j), "");
  for (const char* name : {"m.rope.inv_freq", "final_logits_bias", "a.grid", "b.grid", "loss.weight", "m.pos_weight"})
    EXPECT_THAT(j.decisions(), HasSubstr(std::string(name) + ": frozen, named by --freeze"));
  for (const char* name : {"m.proj_matrix", "a.norm.weight", "a.spline_weight", "a.self_attn.in_proj_bias"})
    EXPECT_THAT(j.decisions(), HasSubstr(std::string(name) + ": trainable"));
  // So it is with metadata, with a choice of the user's, and where the training form names what it trains.
  options.freeze.clear();
  options.train = {"."};
  Imported chosen = import(m, options);
  EXPECT_EQ(possibleBuffers(chosen), "");
  describe(m, "a.norm.weight", kKind, "PARAMETER");
  Imported known = import(m, withBatch(4));
  EXPECT_EQ(possibleBuffers(known), "");
}

// A number is trained if its name is that of a member; exporters call their constants otherwise.
TEST(Trained, NumbersAreTrainedByTheirNames) {
  const std::pair<const char*, bool> names[] = {{"logit_scale", true},
                                                {"_temperature", true},
                                                {"m.logit_scale", true},
                                                {"scales.0", true},
                                                {"12", false},
                                                {"onnx::Mul_12", false},
                                                {"/m/Constant_output_0", false},
                                                {"val_3", false},
                                                {"Constant_7", false},
                                                {"ortshared_1_0_1_0_token_7", false}};
  for (auto [name, trained] : names)
    for (const char* producer : {"pytorch", ""}) {
      SCOPED_TRACE(std::string(name) + " by " + producer);
      ModelBuilder m = scaled();
      m.model.set_producer_name(producer);
      m.floats(name, {}, {2});
      m.node("Mul", {"y", name}, {"z"});
      finish(m, "z");
      const bool expected = trained && (*producer || std::string(name).find('.') != std::string::npos);
      EXPECT_EQ(import(m, withBatch(4)).count("parameter"), expected ? 2 : 1);
    }
}

// The dynamo exporter's optimizer computes with members of the outermost module, too: a matrix that was transposed is
// the parameter, and arithmetic on a number is named.
TEST(Trained, FoldedMembersOfTheOutermostModule) {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("val_0", {2, 2}, {1, 2, 3, 4});
  m.floats("exp", {}, {2});
  m.floats("val_2", {2}, {1, 1});
  describe(m, "val_0", kFoldedFrom, "['w']");
  describe(m, "exp", kFoldedFrom, "['logit_scale']");
  describe(m, "val_2", kFoldedFrom, "['add', 'mul', 'val_3']");
  describe(m, "bias", kKind, "PARAMETER");
  express(m.node("MatMul", {"x", "val_0"}, {"h"}), call("h", "linear.default", "%x, %p_w"));
  m.node("Mul", {"h", "exp"}, {"y"});
  m.node("Mul", {"y", "val_2"}, {"z"});
  finish(m, "z");
  Imported i = import(m, withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_THAT(i.decisions(), HasSubstr("w: trainable, folded into 'val_0'"));
  EXPECT_THAT(joined(i.warnings), AllOf(HasSubstr("not trained: 'logit_scale' in 'exp'"), Not(HasSubstr("add"))));
}

//===--- Stopped gradients ---===//

// h = x * w1, g = x * w2, and y of them by one expression in which `detach` is one or both; whether an export had its
// Identity removed. Returns the names of what is trained.
struct DetachCase {
  const char* name;
  std::vector<std::string> reads;  // operands of the node, "h" or "g"
  std::string arguments;           // arguments of the expression
  std::set<std::string> trained;   // empty: not known
};

Imported detachedModel(const DetachCase& c, bool removed) {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  for (const char* w : {"w1", "w2", "w3"}) {
    m.floats(w, {2}, {1, 2});
    describe(m, w, kKind, "PARAMETER");
    setMetadata(*m.graph().mutable_value_info(m.graph().value_info_size() - 1)->mutable_metadata_props(), kPlaceholder,
                std::string("p_") + w);
  }
  express(m.node("Mul", {"x", "w1"}, {"h"}), call("h", "mul.Tensor", "%x, %p_w1"));
  express(m.node("Mul", {"x", "w2"}, {"g"}), call("g", "mul.Tensor", "%x, %p_w2"));
  if (!removed) {
    express(m.node("Identity", {"h"}, {"detach"}), call("detach", "detach.default", "%h"));
    express(m.node("Identity", {"g"}, {"detach_1"}), call("detach_1", "detach.default", "%g"));
  }
  // The node reads the Identity where that is still there.
  std::vector<std::string> reads = c.reads;
  if (!removed)
    for (std::string& read : reads) {
      const bool first = c.arguments.find("%detach") != std::string::npos && read == "h" &&
                         c.arguments.find("%h") == std::string::npos;
      const bool second = c.arguments.find("%detach_1") != std::string::npos && read == "g";
      if (first) read = "detach";
      if (second) read = "detach_1";
    }
  const std::string expression = call("y", c.name, c.arguments);
  if (std::string(c.name) == "mse_loss.default") {
    express(m.node("Sub", {reads[0], reads[1]}, {"d"}), expression);
    express(m.node("Mul", {"d", "d"}, {"y"}), expression);
  } else {
    express(m.node(reads.size() == 1 ? "Exp" : "Mul", reads, {"y"}), expression);
  }
  m.node("Mul", {"y", "w3"}, {"z"});
  finish(m, "z");
  return import(m, withBatch(4));
}

std::set<std::string> trainedNames(Imported& i) {
  std::set<std::string> names;
  if (i.module)
    for (auto parameter : i.module->getOps<train::ParameterOp>())
      if (parameter.getTrainable()) names.insert(parameter.getSymName().str());
  return names;
}

TEST(Trained, GradientsStopAtDetach) {
  const DetachCase cases[] = {
      {"exp.default", {"h"}, "%detach", {"w3"}},
      {"mul.Tensor", {"h", "g"}, "%detach, %g", {"w2", "w3"}},
      {"mul.Tensor", {"h", "g"}, "%h, %detach_1", {"w1", "w3"}},
      {"mul.Tensor", {"h", "g"}, "%detach, %detach_1", {"w3"}},
      {"mse_loss.default", {"h", "g"}, "%h, %detach_1", {"w1", "w3"}},
      {"mse_loss.default", {"h", "g"}, "%detach, %detach_1", {"w3"}},
  };
  for (const DetachCase& c : cases)
    for (bool removed : {false, true}) {
      SCOPED_TRACE(std::string(c.name) + " " + c.arguments + (removed ? " removed" : ""));
      Imported i = detachedModel(c, removed);
      ASSERT_TRUE(i.module);
      EXPECT_EQ(trainedNames(i), c.trained);
      EXPECT_THAT(i.warnings, ElementsAre());
    }
}

// x * x.detach(): both operands are one value, and the second has no gradient: w x^2 instead of 2 w x^2.
TEST(Trained, OneOfTwoEqualOperandsIsDetached) {
  for (bool detach : {false, true}) {
    ModelBuilder m;
    m.input("x", {"N", 2}).output("loss", {});
    m.floats("w", {2}, {1, 2});
    m.node("Mul", {"x", "w"}, {"h"});
    express(m.node("Mul", {"h", "h"}, {"y"}), call("y", "mul.Tensor", detach ? "%h, %detach" : "%h, %h"));
    finish(m, "y");
    const std::string path = m.save();
    Imported i = import(path, withBatch(4));
    ASSERT_TRUE(i.module);
    const std::map<std::string, train::Tensor> got = gradients(i, 3);
    for (int k : {0, 1}) EXPECT_DOUBLE_EQ(got.at("w").f[k], (detach ? 1 : 2) * (k + 1) * 9.0 / 2);
  }
}

// If nothing is left to train, the error names the node that stops the gradient.
TEST(Trained, DetachOfEverythingIsNamed) {
  ModelBuilder m = scaled();
  express(m.node("Identity", {"y"}, {"detach"}), call("detach", "detach.default", "%y"));
  finish(m, "detach");
  Imported i = import(m, withBatch(4));
  ASSERT_EQ(i.errors.size(), 1u);
  EXPECT_THAT(i.errors[0], HasSubstr("nothing is trainable"));
  EXPECT_THAT(i.errors[0], HasSubstr("The gradient stops at node 'detach' (Tensor.detach)"));
}

// If the expression does not say which operand was detached, gradients pass, and the node is named. A value that is
// really called so was not detached.
TEST(Trained, UnclearDetachIsNamed) {
  DetachCase unclear{"rsub.Tensor", {"h", "g"}, "%linear_2, %detach", {}};
  Imported i = detachedModel(unclear, true);
  ASSERT_TRUE(i.module);
  EXPECT_EQ(trainedNames(i), (std::set<std::string>{"w1", "w2", "w3"}));
  ASSERT_FALSE(i.warnings.empty());
  EXPECT_THAT(i.warnings[0], AllOf(HasSubstr("reads a detached value"), HasSubstr("optimize=False")));

  ModelBuilder m;
  m.input("detach", {"N", 2}).output("loss", {});
  m.floats("w", {2}, {1, 2});
  express(m.node("Mul", {"detach", "w"}, {"y"}), call("y", "mul.Tensor", "%detach, %p_w"));
  finish(m, "y");
  Imported input = import(m, withBatch(4));
  EXPECT_THAT(input.decisions(), HasSubstr("w: trainable"));
}

// The optimizer keeps one of two equal computations, one of which detaches its operand: the other has a name in an
// expression, but no value.
TEST(Trained, MergedDetachIsNamed) {
  for (bool merged : {true, false}) {
    ModelBuilder m;
    m.input("x", {"N", 2}).output("loss", {});
    m.floats("w", {2}, {1, 2});
    describe(m, "w", kKind, "PARAMETER");
    express(m.node("Mul", {"x", "w"}, {"h"}), call("h", "mul.Tensor", "%x, %p_w"));
    express(m.node("Exp", {"h"}, {"exp"}), call("exp", "exp.default", "%detach"));
    express(m.node("Mul", {"h", "exp"}, {"y"}), call("y", "mul.Tensor", merged ? "%exp_1, %exp" : "%h, %exp"));
    finish(m, "y");
    Imported i = import(m, withBatch(4));
    EXPECT_EQ(joined(i.warnings).find("removed or merged others ('exp_1')") != std::string::npos, merged)
        << joined(i.warnings);
  }
}

// The exporter's folds of numbers alone, of buffers and of arithmetic are not trained, also without a module's name.
TEST(Trained, FoldedValuesThatAreNoParametersStay) {
  struct Case {
    const char *value, *sources;
    bool warns;
  };
  for (const Case& c : {Case{"unsqueeze", "['arange']", false}, Case{"unsqueeze_1", "['hann_window', 'val_3']", false},
                        Case{"unsqueeze", "['grid']", true}, Case{"sub", "['b.pos_weight', 'val_0']", true},
                        Case{"add_1", "['norm.weight', 'val_1']", true}}) {
    SCOPED_TRACE(c.value + std::string(c.sources));
    ModelBuilder m;
    m.input("x", {"N", 2}).output("loss", {});
    m.floats("m.w", {2}, {1, 2});
    m.floats(c.value, {2}, {3, 4});
    describe(m, "m.w", kKind, "PARAMETER");
    describe(m, c.value, kFoldedFrom, c.sources);
    m.node("Mul", {"x", "m.w"}, {"h"});
    express(m.node("Mul", {"h", c.value}, {"y"}), call("y", "mul.Tensor", std::string("%h, %") + c.value));
    finish(m, "y");
    Imported i = import(m, withBatch(4));
    ASSERT_TRUE(i.module);
    EXPECT_EQ(trainedNames(i), std::set<std::string>{"m.w"});
    EXPECT_EQ(!i.warnings.empty(), c.warns) << joined(i.warnings);
  }
}

// A parameter that is detached alone is folded into a constant of that name. It stays the parameter, so that the value
// follows what trains it elsewhere.
TEST(Trained, DetachedParametersFollow) {
  for (auto [k, elsewhere] : {std::pair("m.k", false), {"m.k", true}, {"k", false}, {"k", true}}) {
    ModelBuilder m;
    m.input("x", {"N", 2}).output("loss", {});
    m.floats(k, {2}, {3, 4});
    m.floats("detach_1", {2}, {3, 4});
    m.floats("w", {2}, {1, 2});
    describe(m, k, kKind, "PARAMETER");
    describe(m, "w", kKind, "PARAMETER");
    describe(m, "detach_1", kFoldedFrom, "['" + std::string(k) + "']");
    express(m.node("Mul", {"x", "detach_1"}, {"y"}), call("y", "mul.Tensor", "%x, %detach_1"));
    m.node("Mul", {"y", "w"}, {"z"});
    m.node("Mul", {"z", elsewhere ? k : "w"}, {"t"});
    finish(m, "t");
    const std::string path = m.save();
    Imported i = import(path, withBatch(4));
    ASSERT_TRUE(i.module);
    EXPECT_EQ(trainedNames(i), elsewhere ? (std::set<std::string>{k, "w"}) : std::set<std::string>{"w"});
    EXPECT_THAT(i.decisions(), Not(HasSubstr("detach_1: constant")));
    EXPECT_THAT(joined(i.warnings), Not(HasSubstr("detaches")));
    if (!elsewhere) continue;
    // The gradient of w k stop(k) x is w k x.
    const std::map<std::string, train::Tensor> got = gradients(i, 5);
    for (int c : {0, 1}) EXPECT_DOUBLE_EQ(got.at(k).f[c], (c + 1) * (c + 3) * 5.0 / 2);
  }
}

TEST(Trained, MutatedBuffersAreNamed) {
  for (const char* op : {"Add", "BatchNormalization"}) {
    ModelBuilder m = scaled();
    for (const char* name : {"a", "b", "c", "d"}) m.floats(name, {4}, {1, 1, 1, 1});
    if (std::string(op) == "Add")
      m.node(op, {"y", "a"}, {"ema"});
    else
      m.node(op, {"y", "a", "b", "c", "d"}, {"ema"});
    finish(m, "ema");
    describe(m, "fc.weight", kKind, "PARAMETER");
    describe(m, "ema", "pkg.torch.export.graph_signature.OutputSpec.kind", "BUFFER_MUTATION");
    m.graph()
        .mutable_value_info(m.graph().value_info_size() - 1)
        ->mutable_type()
        ->mutable_tensor_type()
        ->set_elem_type(onnx::TensorProto::FLOAT);
    EXPECT_EQ(joined(import(m, withBatch(4)).warnings).find("changes 1 buffer in its forward pass (values 'ema')") !=
                  std::string::npos,
              std::string(op) == "Add");
  }
}

// The row padding_idx of an embedding has no gradient, whether its indices are data or known; others are as they were.
TEST(Trained, PaddingRowsHaveNoGradient) {
  for (bool known : {false, true})
    for (int padding : {-1, 0, 2, 3}) {
      SCOPED_TRACE(std::to_string(padding) + (known ? " known" : ""));
      ModelBuilder m;
      m.input(known ? "x" : "ids", {"N"}, known ? onnx::TensorProto::FLOAT : onnx::TensorProto::INT64);
      m.output("loss", {});
      m.floats("table", {4, 1}, {1, 2, 3, 4});
      if (known) m.integers("ids", {3}, {0, 1, 2});
      express(
          m.node("Gather", {"table", "ids"}, {"rows"}),
          call("rows", "embedding.default", "%p_table, %ids" + (padding < 0 ? "" : ", " + std::to_string(padding))));
      setInteger(m.node("ReduceSum", {"rows"}, {"sum"}), "keepdims", 0);
      if (known) {
        setInteger(m.node("ReduceMean", {"x"}, {"one"}), "keepdims", 0);
        m.node("Mul", {"sum", "one"}, {"loss"});
      } else {
        m.node("Identity", {"sum"}, {"loss"});
      }
      const std::string path = m.save();
      Imported i = import(path, withBatch(3));
      ASSERT_TRUE(i.module);
      EXPECT_THAT(joined(i.warnings), Not(HasSubstr("padding")));
      // Nothing is computed for a row that no known index reads.
      EXPECT_EQ(i.count("stop_gradient"), padding >= 0 && !(known && padding == 3) ? 1 : 0);
      std::map<std::string, train::Tensor> got = gradients(i, 1);
      for (int row = 0; row < 4; ++row) EXPECT_EQ(got.at("table").f[row], row < 3 && row != padding ? 1 : 0) << row;
      EXPECT_EQ(i.count("select"), padding >= 0 && !(known && padding == 3) ? 1 : 0);  // only the gradient's
    }
}

//===--- Dropout ---===//

// A Dropout without training_mode, which PyTorch exports for scaled_dot_product_attention, follows the others.
TEST(Trained, UnstatedDropoutFollowsTheOthers) {
  for (const char* producer : {"pytorch", "other"})
    for (const char* others : {"none", "training", "evaluation"}) {
      SCOPED_TRACE(std::string(producer) + " " + others);
      ModelBuilder m = scaled();
      m.model.set_producer_name(producer);
      m.floats("/Constant", {}, {0.25});
      m.node("Dropout", {"y", "/Constant"}, {"a"}).set_name("/attn/Dropout");
      m.node("Dropout", {"a", "/Constant"}, {"b"}).set_name("/attn/Dropout_1");
      std::string last = "b";
      if (std::string(others) != "none") {
        onnx::TensorProto& mode = m.integers("/mode", {}, {});
        mode.set_data_type(onnx::TensorProto::BOOL);
        mode.add_int32_data(std::string(others) == "training");
        m.node("Dropout", {"b", "/Constant", "/mode"}, {last = "c"}).set_name("/Dropout");
      }
      finish(m, last);
      const std::string mode = others;
      const bool drops = mode == "training" || (mode == "none" && std::string(producer) == "pytorch");
      Imported i = import(m, withBatch(4));
      ASSERT_TRUE(i.module);
      EXPECT_EQ(i.count("dropout"), drops ? (mode == "training" ? 3 : 2) : 0);
      if (drops) {
        EXPECT_THAT(joined(i.warnings), Not(HasSubstr("inference form")));
      } else {
        EXPECT_THAT(
            joined(i.warnings),
            HasSubstr(mode == "none" ? "2 nodes drop nothing ('/attn/Dropout', '/attn/Dropout_1')"
                                     : "3 nodes drop nothing ('/attn/Dropout', '/attn/Dropout_1', '/Dropout')"));
      }
    }
}

// The dynamo exporter's optimizer removes it: the expression alone tells of it.
TEST(Trained, RemovedDropoutOfAttentionIsNamed) {
  for (const char* probability : {", None, 0.2", ", None, 0.0", ""})
    for (bool kept : {false, true}) {
      ModelBuilder m = scaled();
      const std::string expression =
          call("sdpa", "scaled_dot_product_attention.default", std::string("%q, %q, %q") + probability);
      express(m.node("Exp", {"y"}, {"e"}), expression);
      m.floats("/ratio", {}, {0.2f});
      std::string last = "e";
      if (kept) express(m.node("Dropout", {"e", "/ratio"}, {last = "d"}), expression);
      finish(m, last);
      const bool lost = !kept && std::string(probability) == ", None, 0.2";
      EXPECT_EQ(joined(import(m, withBatch(4)).warnings).find("removed the dropout of 1 attention ('sdpa')") !=
                    std::string::npos,
                lost);
    }
}

//===--- Invalid exports ---===//

// Operands that do not fit, in a graph of TorchScript's exporter, say what to do.
TEST(Trained, InvalidExportsAreCalledSo) {
  auto error = [](const char* producer, bool metadata, const std::function<void(ModelBuilder&)>& add) {
    ModelBuilder m = scaled();
    m.model.set_producer_name(producer);
    if (metadata) express(*m.graph().mutable_node(0), call("y", "mul.Tensor", "%x, %w"));
    m.floats("m.three", {3}, {1, 2, 3});
    m.floats("m.matrix", {3, 2}, {1, 2, 3, 4, 5, 6});
    m.integers("five", {1}, {5});
    m.integers("wide", {2}, {2, 3});
    add(m);
    finish(m, "z");
    return joined(import(m, withBatch(4)).errors);
  };
  const std::function<void(ModelBuilder&)> cases[] = {
      [](ModelBuilder& m) {
        m.node("Add", {"y", "m.three"}, {"z"});
      },
      [](ModelBuilder& m) {
        m.node("MatMul", {"y", "m.matrix"}, {"z"});
      },
      [](ModelBuilder& m) {
        m.node("Reshape", {"y", "five"}, {"z"});
      },
      [](ModelBuilder& m) {
        m.node("Expand", {"y", "wide"}, {"z"});
      },
      [](ModelBuilder& m) {
        m.node("Add", {"y", "five"}, {"z"});
      },
      [](ModelBuilder& m) {
        setInteger(m.node("Concat", {"y", "m.matrix"}, {"z"}), "axis", 1);
      },
  };
  for (const auto& add : cases) {
    EXPECT_THAT(error("pytorch", false, add), AllOf(HasSubstr("the export is invalid"), HasSubstr("dynamo=True")));
    EXPECT_THAT(error("pytorch", true, add), Not(HasSubstr("invalid")));
    EXPECT_THAT(error("other", false, add), Not(HasSubstr("invalid")));
  }
}

//===--- Weights in Constant nodes ---===//

void constant(ModelBuilder& m, const std::string& name, std::vector<int64_t> dims, std::vector<float> values) {
  onnx::NodeProto& node = m.node("Constant", {}, {name});
  onnx::AttributeProto& value = *node.add_attribute();
  value.set_name("value");
  value.set_type(onnx::AttributeProto::TENSOR);
  *value.mutable_t() = floatTensor("of " + name, dims, values);
}

// x * W + b, normalized, times a number; all in Constant nodes.
ModelBuilder constantModel() {
  ModelBuilder m;
  m.model.set_producer_name("PaddlePaddle");
  m.input("x", {"N", 2}).output("loss", {});
  constant(m, "linear_0.w_0", {2, 2}, {1, 2, 3, 4});
  m.node("MatMul", {"x", "linear_0.w_0"}, {"a"});
  constant(m, "linear_0.b_0", {2}, {5, 6});
  m.node("Add", {"a", "linear_0.b_0"}, {"b"});
  constant(m, "norm_0.w_0", {2}, {1, 1});
  constant(m, "norm_0.b_0", {2}, {0, 0});
  m.node("LayerNormalization", {"b", "norm_0.w_0", "norm_0.b_0"}, {"c"});
  constant(m, "factor", {1}, {0.5});
  m.node("Mul", {"c", "factor"}, {"d"});
  constant(m, "square", {2, 1, 2}, {1, 2, 3, 4});
  m.node("Mul", {"d", "square"}, {"y"});
  finish(m, "y");
  return m;
}

TEST(Trained, WeightsInConstantNodesAreParameters) {
  const std::string path = constantModel().save();
  Imported i = import(path, withBatch(4));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(trainedNames(i), (std::set<std::string>{"linear_0.w_0", "linear_0.b_0", "norm_0.w_0", "norm_0.b_0"}));
  EXPECT_THAT(joined(i.warnings), HasSubstr("4 Constant nodes ('linear_0.w_0', 'linear_0.b_0', 'norm_0.w_0', "
                                            "'norm_0.b_0') with 10 elements in the place of weights"));
  const std::string begin = "compile with --freeze '", warning = joined(i.warnings);
  const size_t at = warning.find(begin);
  ASSERT_NE(at, std::string::npos);
  frontend::ImportOptions frozen = withBatch(4);
  frozen.freeze = {warning.substr(at + begin.size(), warning.find("'\n", at) - at - begin.size())};
  EXPECT_THAT(joined(import(constantModel(), frozen).errors), HasSubstr("nothing is trainable"));
  // Their bytes lie in the model's file, and are read there.
  auto weight = i.module->lookupSymbol<train::ParameterOp>("linear_0.w_0");
  ASSERT_TRUE(weight && weight.getSourceAttr());
  EXPECT_THAT(readParameters(*i.module, modelFolder()).at("linear_0.w_0").f, ElementsAre(1, 2, 3, 4));

  // The written model has Constant nodes again, where they were.
  mlir::MLIRContext context;
  frontend::TrainedParameters trained;
  for (const char* name : {"linear_0.w_0", "linear_0.b_0", "norm_0.w_0", "norm_0.b_0"}) trained.names.insert(name);
  trained.values = [](llvm::StringRef, mlir::FloatType, int64_t count) -> mlir::FailureOr<std::string> {
    const std::vector<float> values(size_t(count), 7);
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  const std::string output = path + "-trained.onnx";
  ASSERT_TRUE(mlir::succeeded(frontend::exportOnnx(context, path, output, {"", false}, trained)));
  onnx::ModelProto expected = constantModel().model, written;
  for (onnx::NodeProto& node : *expected.mutable_graph()->mutable_node())
    if (node.op_type() == "Constant" && trained.names.contains(node.output(0))) {
      onnx::TensorProto& tensor = *node.mutable_attribute(0)->mutable_t();
      const std::vector<float> values(tensor.raw_data().size() / sizeof(float), 7);
      tensor.set_raw_data(values.data(), values.size() * sizeof(float));
    }
  std::ifstream file(output, std::ios::binary);
  ASSERT_TRUE(written.ParseFromIstream(&file));
  EXPECT_EQ(written.SerializeAsString(), expected.SerializeAsString());
}

// PyTorch's exporters put parameters into initializers, and constants of the code into nodes; elsewhere a matrix is
// one wherever it lies.
TEST(Trained, ConstantsNextToInitializers) {
  for (const char* producer : {"pytorch", "other"}) {
    ModelBuilder m;
    m.model.set_producer_name(producer);
    m.input("x", {"N", 2}).output("loss", {});
    m.floats("fc.weight", {2, 2}, {1, 2, 3, 4});
    m.node("MatMul", {"x", "fc.weight"}, {"a"});
    constant(m, "basis", {2, 2}, {1, 0, 0, 1});
    m.node("MatMul", {"a", "basis"}, {"b"});
    constant(m, "mean", {2}, {1, 2});
    m.node("Sub", {"b", "mean"}, {"y"});
    finish(m, "y");
    Imported i = import(m, withBatch(4));
    std::set<std::string> expected{"fc.weight"};
    if (std::string(producer) == "other") expected.insert("basis");
    EXPECT_EQ(trainedNames(i), expected) << producer;
  }
}

}  // namespace
}  // namespace sheaf::test
