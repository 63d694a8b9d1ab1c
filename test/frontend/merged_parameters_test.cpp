// Parameters that exporters merged with other tensors or removed: each case is what an exporter wrote for a small
// module, and what PyTorch trains in it.
#include <gmock/gmock.h>

#include <set>

#include "frontend/onnx/export/Export.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace sheaf::test {
namespace {

struct Step {
  std::string op;
  Names inputs;
  std::string output, function, arguments;  // belong to the expression; none if `function` is empty
};

// A tensor of the module: "p_t: PARAMETER target='t'", and its shape and value if the graph has it.
struct ModuleTensor {
  std::string name;
  bool parameter = true;
  std::optional<std::vector<int64_t>> dims = {};
  float value = 0.5f;
};

struct MergeCase {
  const char* name;
  std::vector<ModuleTensor> tensors;
  std::vector<Step> steps;  // from x [N, 4]; the last one is what the loss is the mean of
  std::vector<std::string> trained;
  std::string warning;  // a part of the one warning; none if empty
};

std::string placeholder(const ModuleTensor& tensor) {
  std::string name = tensor.parameter ? "p_" : "b_";
  for (char c : tensor.name) name += c == '.' ? '_' : c;
  return name;
}

// As torch.onnx.export(dynamo=True) writes it after its optimizer.
ModelBuilder optimized(const MergeCase& c) {
  ModelBuilder m;
  m.model.set_producer_name("pytorch");
  m.input("x", {"N", 4}).output("loss", {});
  std::string signature = "\n# inputs\n";
  for (const ModuleTensor& tensor : c.tensors) {
    const std::string kind = tensor.parameter ? "PARAMETER" : "BUFFER";
    signature += placeholder(tensor) + ": " + kind + " target='" + tensor.name + "'\n";
    if (!tensor.dims) continue;
    int64_t count = 1;
    for (int64_t dim : *tensor.dims) count *= dim;
    m.floats(tensor.name, *tensor.dims, std::vector<float>(count, tensor.value));
    describe(m, tensor.name, kKind, kind);
    onnx::ValueInfoProto& info = *m.graph().mutable_value_info(m.graph().value_info_size() - 1);
    setMetadata(*info.mutable_metadata_props(), kPlaceholder, placeholder(tensor));
  }
  signature += "x: USER_INPUT\n\n# outputs\nmean: USER_OUTPUT\n";
  setMetadata(*m.graph().mutable_metadata_props(), "pkg.torch.export.ExportedProgram.graph_signature", signature);
  for (const Step& step : c.steps) {
    onnx::NodeProto& node = m.node(step.op, step.inputs, {step.output});
    if (!step.function.empty()) express(node, call(step.output, step.function, step.arguments));
  }
  onnx::NodeProto& mean = m.node("ReduceMean", {c.steps.back().output}, {"loss"});
  setInteger(mean, "keepdims", 0);
  express(mean, call("mean", "mean.default", "%" + c.steps.back().output));
  return m;
}

std::vector<std::string> trainedNames(Imported& i) {
  std::set<std::string> names;
  if (i.module)
    for (auto parameter : i.module->getOps<train::ParameterOp>())
      if (parameter.getTrainable()) names.insert(parameter.getSymName().str());
  return {names.begin(), names.end()};
}

const Step kTanh{"Tanh", {"x"}, "tanh", "tanh.default", "%x"};

const MergeCase kCases[] = {
    {"two parameters",
     {{"t", true, {{4}}}, {"u"}},
     {{"Mul", {"x", "t"}, "mul", "mul.Tensor", "%x, %p_t"}, {"Add", {"mul", "t"}, "add", "add.Tensor", "%mul, %p_u"}},
     {"t", "u"},
     "merged parameters of equal value; 'u' was separated again"},
    {"two parameters of one product",
     {{"t", true, {{4}}}, {"u"}},
     {{"Mul", {"t", "t"}, "mul", "mul.Tensor", "%p_t, %p_u"}, {"Mul", {"x", "mul"}, "mul_1", "mul.Tensor", "%x, %mul"}},
     {"t", "u"},
     "'u' was separated again"},
    {"scales and biases of two norms",
     {{"n1.weight", true, {{4}}, 1}, {"n1.bias", true, {{4}}, 0}, {"n2.weight"}, {"n2.bias"}},
     {{"LayerNormalization",
       {"x", "n1.weight", "n1.bias"},
       "layer_norm",
       "layer_norm.default",
       "%x, [4], %p_n1_weight, %p_n1_bias, 1e-05, False"},
      {"LayerNormalization",
       {"layer_norm", "n1.weight", "n1.bias"},
       "layer_norm_1",
       "layer_norm.default",
       "%layer_norm, [4], %p_n2_weight, %p_n2_bias, 1e-05, False"}},
     {"n1.bias", "n1.weight", "n2.bias", "n2.weight"},
     "'n2.weight', 'n2.bias' were separated again"},
    {"matrices of zeros, without their biases",
     {{"c.weight", true, {{4, 4}}, 0}, {"c.bias"}, {"d.weight"}, {"d.bias"}},
     {{"Gemm", {"x", "c.weight"}, "linear", "linear.default", "%x, %p_c_weight, %p_c_bias"},
      {"Gemm", {"linear", "c.weight"}, "linear_1", "linear.default", "%linear, %p_d_weight, %p_d_bias"}},
     {"c.weight", "d.weight"},
     "2 parameters from the graph ('c.bias' at node 'linear', 'd.bias' at node 'linear_1')"},
    {"a parameter and a buffer",
     {{"t", true, {{4}}}, {"g", false}},
     {{"Mul", {"x", "t"}, "mul", "mul.Tensor", "%x, %p_t"}, {"Add", {"mul", "t"}, "add", "add.Tensor", "%mul, %b_g"}},
     {"t"},
     ""},
    {"a buffer and a parameter",
     {{"g", false, {{4}}}, {"t"}},
     {{"Mul", {"x", "g"}, "mul", "mul.Tensor", "%x, %b_g"}, {"Add", {"mul", "g"}, "add", "add.Tensor", "%mul, %p_t"}},
     {"t"},
     "'t' was separated again"},
    {"a parameter and a number",
     {{"t", true, {{}}}},
     {{"Mul", {"x", "t"}, "mul", "mul.Tensor", "%x, %p_t"}, {"Add", {"mul", "t"}, "add", "add.Tensor", "%mul, 0.5"}},
     {"t"},
     ""},
    {"a parameter and a constant",
     {{"t", true, {{4}}}},
     {{"Mul", {"x", "t"}, "mul", "mul.Tensor", "%x, %p_t"}, {"Add", {"mul", "t"}, "add", "add.Tensor", "%mul, %full"}},
     {"t"},
     ""},
    {"a factor of one",
     {{"t", true, {{4}}}, {"scale"}},
     {kTanh, {"Add", {"tanh", "t"}, "add", "add.Tensor", "%mul, %p_t"}},
     {"t"},
     "1 parameter is not in the graph ('scale'). The exporter's optimizer removed or merged operations ('mul')"},
    {"computations of merged parameters",
     {{"t", true, {{4}}}, {"u"}},
     {{"Mul", {"x", "t"}, "mul", "mul.Tensor", "%x, %p_t"},
      {"Add", {"mul", "mul"}, "add", "add.Tensor", "%mul, %mul_1"}},
     {"t"},
     "1 parameter is not in the graph ('u')"},
    {"limits of a clamp",
     {{"t", true, {{4}}}, {"alpha"}},
     {{"Mul", {"x", "t"}, "mul", "mul.Tensor", "%x, %p_t"},
      {"Relu", {"mul"}, "clamp", "clamp.Tensor", "%mul, %neg, %p_alpha"}},
     {"t"},
     "removed 1 parameter from the graph ('alpha' at node 'clamp')"},
    {"operands in another order",
     {{"t", true, {{4}}}, {"v"}},
     {{"Mul", {"x", "t"}, "tmp", "", ""}, {"Add", {"t", "tmp"}, "addcmul", "addcmul.default", "%p_t, %x, %p_v"}},
     {"t"},
     "('v' at node 'addcmul')"},
    {"a parameter that forward does not use",
     {{"t", true, {{4}}}, {"unused"}},
     {{"Mul", {"x", "t"}, "mul", "mul.Tensor", "%x, %p_t"}},
     {"t"},
     ""},
    {"another name of a tied table",
     {{"e.weight"}, {"o.weight", true, {{4, 4}}}},
     {{"Gemm", {"x", "o.weight"}, "linear", "linear.default", "%x, %p_o_weight"}},
     {"o.weight"},
     ""},
};

TEST(MergedParameters, AreSeparatedOrNamed) {
  for (const MergeCase& c : kCases) {
    SCOPED_TRACE(c.name);
    Imported i = import(optimized(c), withBatch(4));
    EXPECT_EQ(trainedNames(i), c.trained);
    EXPECT_EQ(i.decisions().find("tied (") != std::string::npos, std::string(c.name) == "operands in another order");
    std::string warnings;
    for (const std::string& warning : i.warnings) warnings += warning + "\n";
    if (c.warning.empty())
      EXPECT_EQ(warnings, "");
    else
      EXPECT_THAT(warnings, HasSubstr(c.warning));
  }
}

// A number that the expression does not take is not taken for one of it.
TEST(MergedParameters, OperandsOfOtherValuesStay) {
  MergeCase c = {"",
                 {{"t", true, {{}}}},
                 {{"Mul", {"x", "t"}, "mul", "mul.Tensor", "%x, %p_t"},
                  {"Add", {"mul", "t"}, "add", "add.Tensor", "%clone, %alias"}},
                 {},
                 ""};
  Imported i = import(optimized(c), withBatch(4));
  EXPECT_THAT(i.decisions(), HasSubstr("t: trainable, tied (2 uses)"));
}

// loss = mean(op(op(x, t), u)), and u is an Identity of t, as TorchScript's exporter writes tensors of equal value.
ModelBuilder byIdentity(const std::string& t, const std::string& u) {
  ModelBuilder m = chain("Mul", t, u);
  m.model.set_producer_name("pytorch");
  m.floats(t, {2}, {3, 3});
  m.node("Identity", {t}, {u});
  for (int k = m.graph().node_size() - 1; k > 0; --k) m.graph().mutable_node()->SwapElements(k, k - 1);
  return m;
}

TEST(MergedParameters, IdentitiesOfTorchScriptAreTensors) {
  Imported i = import(byIdentity("m.n1.weight", "m.n2.weight"), withBatch(4));
  EXPECT_THAT(trainedNames(i), ElementsAre("m.n1.weight", "m.n2.weight"));
  EXPECT_THAT(i.warnings, IsEmpty());
  auto first = i.module->lookupSymbol<train::ParameterOp>("m.n1.weight");
  auto second = i.module->lookupSymbol<train::ParameterOp>("m.n2.weight");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first.getSourceAttr(), second.getSourceAttr());
  // The result of a node is not a tensor of the module.
  Imported node = import(byIdentity("m.n1.weight", "/m/Identity_output_0"), withBatch(4));
  EXPECT_THAT(trainedNames(node), ElementsAre("m.n1.weight"));
}

// The table of an output layer, transposed by TorchScript's exporter, is the table again.
TEST(MergedParameters, TransposedTablesOfTorchScriptAreTied) {
  auto model = [](float last) {
    ModelBuilder m;
    m.model.set_producer_name("pytorch");
    m.input("ids", {"N"}, onnx::TensorProto::INT64).output("loss", {});
    m.floats("e.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
    m.floats("onnx::MatMul_11", {2, 3}, {1, 3, 5, 2, 4, last});
    m.node("Gather", {"e.weight", "ids"}, {"/e/Gather_output_0"});
    m.node("MatMul", {"/e/Gather_output_0", "onnx::MatMul_11"}, {"y"});
    setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    return m;
  };
  Imported tied = import(model(6), withBatch(4)), other = import(model(7), withBatch(4));
  EXPECT_THAT(trainedNames(tied), ElementsAre("e.weight"));
  EXPECT_THAT(trainedNames(other), ElementsAre("e.weight", "onnx::MatMul_11"));

  // Larger than what is compared at a time, along both dimensions.
  auto large = [](int64_t wrong) {
    constexpr int64_t kRows = 130, kColumns = 70;
    std::vector<float> table(kRows * kColumns), transposed(table.size());
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c)
        transposed[c * kRows + r] = table[r * kColumns + c] = float(r * kColumns + c);
    if (wrong >= 0) transposed[wrong] += 1;
    ModelBuilder m;
    m.model.set_producer_name("pytorch");
    m.input("ids", {"N"}, onnx::TensorProto::INT64).output("loss", {});
    m.floats("e.weight", {kRows, kColumns}, table);
    m.floats("onnx::MatMul_11", {kColumns, kRows}, transposed);
    m.node("Gather", {"e.weight", "ids"}, {"/e/Gather_output_0"});
    m.node("MatMul", {"/e/Gather_output_0", "onnx::MatMul_11"}, {"y"});
    setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    return m;
  };
  Imported whole = import(large(-1), withBatch(4));
  EXPECT_THAT(trainedNames(whole), ElementsAre("e.weight"));
  for (int64_t wrong : {0, 69 * 130 + 129, 64 * 130 + 63, 63 * 130 + 128}) {
    Imported apart = import(large(wrong), withBatch(4));
    EXPECT_THAT(trainedNames(apart), ElementsAre("e.weight", "onnx::MatMul_11")) << wrong;
  }
}

// A limit that has the name of a member is learned; one that the exporter has computed is named.
TEST(MergedParameters, LimitsOfTorchScriptAreTrainedOrNamed) {
  auto model = [](const std::string& limit) {
    ModelBuilder m = chain("Mul", "fc.weight", "fc.weight");
    m.model.set_producer_name("pytorch");
    m.floats("fc.weight", {2}, {1, 2});
    m.floats(limit, {}, {1.5f});
    m.graph().mutable_node()->RemoveLast();
    m.node("Clip", {"z", "", limit}, {"c"});
    setInteger(m.node("ReduceMean", {"c"}, {"loss"}), "keepdims", 0);
    return m;
  };
  for (const char* name : {"alpha", "act.alpha"}) {
    Imported i = import(model(name), withBatch(4));
    EXPECT_THAT(trainedNames(i), ElementsAre(name, "fc.weight"));
    EXPECT_THAT(i.decisions(), HasSubstr(std::string("'") + name + "' is trained, but may be a buffer"));
  }
  Imported folded = import(model("onnx::Clip_15"), withBatch(4));
  EXPECT_THAT(trainedNames(folded), ElementsAre("fc.weight"));
  ASSERT_EQ(folded.warnings.size(), 1u);
  EXPECT_THAT(folded.warnings[0], HasSubstr("'onnx::Clip_15' is a number that TorchScript's exporter has computed"));
}

// Two look-ups at the same indices, of which the optimizer has made one.
TEST(MergedParameters, MergedLookUpsAreNamed) {
  auto warnings = [](const std::string& second) {
    ModelBuilder m;
    m.input("ids", {"N"}, onnx::TensorProto::INT64).output("loss", {});
    m.floats("e.weight", {3, 2}, {1, 2, 3, 4, 5, 6});
    describe(m, "e.weight", kKind, "PARAMETER");
    express(m.node("Gather", {"e.weight", "ids"}, {"embedding"}),
            call("embedding", "embedding.default", "%p_e_weight, %ids, 0"));
    express(m.node("Tanh", {"embedding"}, {"tanh"}), call("tanh", "tanh.default", second));
    express(m.node("Add", {"embedding", "tanh"}, {"add"}), call("add", "add.Tensor", "%embedding, %tanh"));
    setInteger(m.node("ReduceMean", {"add"}, {"loss"}), "keepdims", 0);
    Imported i = import(m, withBatch(4));
    return i.warnings.empty() ? "" : i.warnings[0];
  };
  EXPECT_THAT(warnings("%embedding_1"), HasSubstr("merged look-ups of a table ('embedding_1' with 'embedding')"));
  EXPECT_EQ(warnings("%embedding"), "");
}

}  // namespace
}  // namespace sheaf::test
