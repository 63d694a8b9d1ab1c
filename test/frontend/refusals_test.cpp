// Models that must be refused, or be taken as they are: indices out of range, ranks, names, the work of known values,
// and bodies that yield no tensors.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "test/frontend/ModelBuilder.h"
#include "test/frontend/Reference.h"

using ::testing::Contains;
using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

onnx::GraphProto& subgraphOf(onnx::NodeProto& node, const std::string& name, const Names& inputs,
                             const Names& outputs) {
  onnx::AttributeProto& a = *node.add_attribute();
  a.set_name(name);
  a.set_type(onnx::AttributeProto::GRAPH);
  a.mutable_g()->set_name(name);
  for (const std::string& input : inputs) a.mutable_g()->add_input()->set_name(input);
  for (const std::string& output : outputs) a.mutable_g()->add_output()->set_name(output);
  return *a.mutable_g();
}

template <typename Graph>
onnx::NodeProto& add(Graph& graph, const std::string& op, const Names& inputs, const Names& outputs) {
  onnx::NodeProto& node = *graph.add_node();
  node.set_op_type(op);
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& output : outputs) node.add_output(output);
  return node;
}

// loss = sum(x * w) + sum(`known`), x [N, 2].
void addLoss(ModelBuilder& m, const std::string& known) {
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("w", {2}, {1, 2});
  m.node("Mul", {"x", "w"}, {"p"});
  setInteger(m.node("ReduceSum", {"p"}, {"one"}), "keepdims", 0);
  setInteger(m.node("Cast", {known}, {"number"}), "to", onnx::TensorProto::FLOAT);
  setInteger(m.node("ReduceSum", {"number"}, {"two"}), "keepdims", 0);
  m.node("Add", {"one", "two"}, {"loss"});
}

TEST(IndicesOutOfRange, KnownOnesAreErrorsOfTheImport) {
  auto gathered = [](const std::string& op, std::vector<int64_t> dims, std::vector<int64_t> indices) {
    ModelBuilder m = ModelBuilder::unary(op, 20, {2, 3}, {1, 2, 3, 4, 5, 6}, {"i"});
    m.integers("i", dims, indices);
    return errorOf(m);
  };
  EXPECT_EQ(gathered("GatherND", {2, 2}, {1, -3, -2, 2}), "");
  EXPECT_THAT(gathered("GatherND", {1, 2}, {0, 4}), HasSubstr("index 4 is out of range for dimension 1 of [2x3]"));
  EXPECT_THAT(gathered("GatherND", {1, 2}, {1, -5}), HasSubstr("index -5 is out of range for dimension 1 of [2x3]"));
  EXPECT_THAT(gathered("GatherND", {1, 2}, {-3, 0}), HasSubstr("index -3 is out of range for dimension 0 of [2x3]"));
  // The first column counts the rows; there is one column.
  EXPECT_THAT(gathered("GatherND", {2, 2}, {0, 1, 1, -5}),
              HasSubstr("index -5 is out of range for dimension 1 of [2x3]"));
  EXPECT_THAT(gathered("GatherND", {2, 1}, {0, -3}), HasSubstr("index -3 is out of range for dimension 0 of [2x3]"));
  EXPECT_THAT(gathered("GatherElements", {1, 3}, {0, 2, 1}),
              HasSubstr("index 2 is out of range for dimension 0 of [2x3]"));
}

TEST(IndicesOutOfRange, DataHaveNoValue) {
  // The loss of two rows of indices; nothing if it has no value. `before`: a column of numbers of rows comes first.
  auto lossOfIndices = [](std::vector<int64_t> indices, int64_t columns, bool before, int64_t batch) {
    ModelBuilder m;
    m.input("i", {"N", columns}, onnx::TensorProto::INT64).output("loss", {});
    m.floats("w", {2, 3}, {1, 2, 3, 4, 5, 6});
    m.integers("rows", {2, 1}, {0, 1});
    if (before) setInteger(m.node("Concat", {"rows", "i"}, {"both"}), "axis", 1);
    setInteger(m.node("GatherND", {"w", before ? "both" : "i"}, {"y"}), "batch_dims", batch);
    setInteger(m.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
    std::string path = m.save();
    Imported imported = import(path, withBatch(2));
    if (!imported.module) return std::optional<double>();
    auto step = imported.module->lookupSymbol<mlir::func::FuncOp>("step");
    train::Tensor data = train::Tensor::zeros(mlir::cast<mlir::RankedTensorType>(step.getArgumentTypes()[0]));
    data.i = indices;
    mlir::ScopedDiagnosticHandler quiet(imported.context.get(), [](mlir::Diagnostic&) {});
    auto result = train::evaluateFunction(step, {data}, readParameters(*imported.module, modelFolder()));
    return mlir::succeeded(result) ? std::optional(result->loss->f[0]) : std::nullopt;
  };
  EXPECT_EQ(lossOfIndices({0, -1, 1, 0}, 2, false, 0), 3 + 4);
  EXPECT_EQ(lossOfIndices({0, 4, 1, 0}, 2, false, 0), std::nullopt);
  EXPECT_EQ(lossOfIndices({1, -5, 1, 0}, 2, false, 0), std::nullopt);
  EXPECT_EQ(lossOfIndices({2, -1, 1, 0}, 2, false, 0), std::nullopt);
  EXPECT_EQ(lossOfIndices({-1, 0}, 1, false, 0), 15 + 6);
  EXPECT_EQ(lossOfIndices({-3, 0}, 1, false, 0), std::nullopt);
  EXPECT_EQ(lossOfIndices({-1, 0}, 1, true, 0), 3 + 4);
  EXPECT_EQ(lossOfIndices({-5, 0}, 1, true, 0), std::nullopt);
  EXPECT_EQ(lossOfIndices({-1, 0}, 1, false, 1), 3 + 4);
  EXPECT_EQ(lossOfIndices({-5, 0}, 1, false, 1), std::nullopt);
}

TEST(Ranks, AreLimitedWhereverTheyEnter) {
  const std::vector<int64_t> ones(65, 1);
  const auto stated = HasSubstr("65 dimensions; at most 64 are supported");
  auto small = [](const std::string& op, int64_t opset, Names more) {
    return ModelBuilder::unary(op, opset, {1, 4}, {1, 2, 3, 4}, more);
  };
  ModelBuilder initializer = small("Neg", 20, {});
  initializer.floats("big", ones, {1});
  EXPECT_THAT(errorOf(initializer), stated);
  ModelBuilder input = small("Neg", 20, {});
  input.input("big", Dims(65, int64_t(1)));
  EXPECT_THAT(errorOf(input), stated);
  ModelBuilder constant = small("Neg", 20, {});
  onnx::AttributeProto& value = *constant.node("Constant", {}, {"big"}).add_attribute();
  value.set_name("value");
  value.set_type(onnx::AttributeProto::TENSOR);
  *value.mutable_t() = floatTensor("t", ones, {1});
  EXPECT_THAT(errorOf(constant), stated);
  const auto made = HasSubstr("dimensions is out of range; at most 64 are supported");
  for (int64_t rank : {64, 65}) {
    std::vector<int64_t> shape(rank, 1);
    shape.back() = 4;
    for (const char* op : {"Reshape", "Expand"}) {
      ModelBuilder m = small(op, 20, {"shape"});
      m.integers("shape", {rank}, shape);
      EXPECT_THAT(errorOf(m), rank == 64 ? HasSubstr("") : made) << op;
      EXPECT_EQ(errorOf(m).empty(), rank == 64) << op;
    }
  }
  ModelBuilder attribute = small("Unsqueeze", 11, {});
  std::vector<int64_t> axes(1 << 20);
  for (size_t k = 0; k < axes.size(); ++k) axes[k] = int64_t(k);
  setIntegers(*attribute.graph().mutable_node(0), "axes", axes);
  EXPECT_THAT(errorOf(attribute), made);
  ModelBuilder operand = small("Unsqueeze", 13, {"axes"});
  axes.resize(63);
  operand.integers("axes", {63}, axes);
  EXPECT_THAT(errorOf(operand), made);
}

// ONNX's graphs are in single static assignment form; names of a subgraph may hide those around it.
TEST(Names, AreDefinedOnce) {
  auto small = [] { return ModelBuilder::unary("Neg", 20, {2}, {1, 2}); };
  ModelBuilder input = small();
  input.node("Neg", {"x"}, {"x"});
  EXPECT_THAT(errorOf(input), HasSubstr("defines the value 'x' twice; inputs, initializers and results"));
  ModelBuilder initializer = small();
  initializer.node("Neg", {"x"}, {"w"});
  EXPECT_THAT(errorOf(initializer), HasSubstr("defines the value 'w' twice;"));
  ModelBuilder inputs = small();
  inputs.input("x", {"N"});
  EXPECT_THAT(errorOf(inputs), HasSubstr("defines the value 'x' twice;"));
  ModelBuilder defaulted = small();
  defaulted.input("w", {2});
  EXPECT_EQ(errorOf(defaulted), "");

  auto loop = [](const std::string& result, const std::string& second) {
    ModelBuilder m = ModelBuilder::unary("Loop", 20, {2}, {1, 2});
    onnx::NodeProto& node = *m.graph().mutable_node(0);
    node.clear_input();
    for (const char* name : {"trips", "", "w"}) node.add_input(name);
    m.integers("trips", {}, {2});
    onnx::GraphProto& body = subgraphOf(node, "body", {"i", "go", "v"}, {"go", result});
    add(body, "Add", {"v", "v"}, {result});
    add(body, "Neg", {"v"}, {second});
    return m;
  };
  EXPECT_EQ(lossOf(loop("w", "x")), 12);
  EXPECT_THAT(errorOf(loop("v", "u")), HasSubstr("defines the value 'v' twice in the subgraph 'body';"));
  EXPECT_THAT(errorOf(loop("u", "u")), HasSubstr("defines the value 'u' twice in the subgraph 'body';"));

  ModelBuilder function = small();
  onnx::FunctionProto& f = *function.model.add_functions();
  f.set_name("F");
  f.set_domain("local");
  f.add_input("a");
  f.add_output("a");
  add(f, "Neg", {"a"}, {"a"});
  EXPECT_THAT(errorOf(function), HasSubstr("defines the value 'a' twice in the function 'F';"));
}

// Nodes of loops that read much count as many: here 1,000 turns that read 2^22 known elements each leave some 10,000
// of 2^19 nodes.
ModelBuilder nearlySpent(int64_t turns) {
  ModelBuilder m(20);
  m.integers("zero", {}, {0});
  m.integers("step", {}, {1});
  m.integers("end", {}, {1 << 22});
  m.integers("turns", {}, {turns});
  onnx::TensorProto& yes = m.integers("yes", {}, {});
  yes.set_data_type(onnx::TensorProto::BOOL);
  yes.add_int32_data(1);
  m.node("Range", {"zero", "end", "step"}, {"long"});
  onnx::GraphProto& body =
      subgraphOf(m.node("Loop", {"turns", "", "zero"}, {"spent"}), "body", {"i", "go", "v"}, {"go", "u"});
  add(body, "Where", {"yes", "v", "long"}, {"u"});
  return m;
}

TEST(Work, OfKnownOperandsCounts) {
  const auto refused = HasSubstr("expand to more than 524288 nodes");
  for (int64_t turns : {1000, 1100}) {
    ModelBuilder m = nearlySpent(turns);
    m.node("Shape", {"spent"}, {"size"});
    addLoss(m, "size");
    EXPECT_THAT(errorOf(m), turns == 1000 ? HasSubstr("") : refused);
    EXPECT_EQ(errorOf(m).empty(), turns == 1000);
  }
}

TEST(Work, OfSubgraphsAndPartsCounts) {
  const auto refused = HasSubstr("expand to more than 524288 nodes");
  // A branch whose initializer is read in each iteration.
  ModelBuilder branch = nearlySpent(1000);
  branch.integers("times", {}, {2000});
  onnx::GraphProto& body = subgraphOf(branch.node("Loop", {"times", "", "spent"}, {"end_of_loop"}), "body",
                                      {"i2", "go2", "v2"}, {"go2", "u2"});
  onnx::NodeProto& choice = add(body, "If", {"yes"}, {"u2"});
  for (const char* name : {"then_branch", "else_branch"}) {
    onnx::GraphProto& graph = subgraphOf(choice, name, {}, {"r"});
    add(graph, "Identity", {"v2"}, {"r"});
    onnx::TensorProto& unused = *graph.add_initializer();
    unused.set_name("unused");
    unused.set_data_type(onnx::TensorProto::INT64);
    unused.add_dims(1 << 16);
    unused.set_raw_data(std::string(size_t(8) << 16, '\1'));
  }
  branch.node("Shape", {"end_of_loop"}, {"size"});
  addLoss(branch, "size");
  EXPECT_THAT(errorOf(branch), refused);

  // A Scan over rows of a known matrix, each of which is cut from the whole.
  ModelBuilder scan = nearlySpent(1000);
  scan.integers("many", {}, {1 << 16});
  scan.integers("matrix_shape", {2}, {1 << 10, 1 << 6});
  scan.node("Shape", {"spent"}, {"spent_size"});
  scan.node("Range", {"zero", "many", "step"}, {"line"});
  scan.node("Reshape", {"line", "matrix_shape"}, {"matrix"});
  onnx::NodeProto& node = scan.node("Scan", {"spent_size", "matrix"}, {"size", "rows"});
  setInteger(node, "num_scan_inputs", 1);
  onnx::GraphProto& rows = subgraphOf(node, "body", {"s", "e"}, {"s2", "o"});
  add(rows, "Identity", {"s"}, {"s2"});
  add(rows, "Identity", {"e"}, {"o"});
  addLoss(scan, "size");
  EXPECT_THAT(errorOf(scan), refused);

  ModelBuilder parts(20);
  for (auto [name, number] : {std::pair("zero", 0), {"step", 1}, {"end", 1 << 16}})
    parts.integers(name, {}, {int64_t(number)});
  parts.node("Range", {"zero", "end", "step"}, {"line"});
  parts.node("SplitToSequence", {"line"}, {"sequence"});
  parts.node("SequenceAt", {"sequence", "zero"}, {"first"});
  addLoss(parts, "first");
  EXPECT_THAT(errorOf(parts), refused);
}

// A Scan with one state and one scanned input [4, 2], whose body's last node makes the state `result`.
ModelBuilder scanned(int64_t opset) {
  const bool batched = opset < 9;
  ModelBuilder m(opset);
  m.input("x", {"N"}).output("loss", {});
  m.floats("w", batched ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2}, {1, 2});
  m.floats("steps", batched ? std::vector<int64_t>{1, 4, 2} : std::vector<int64_t>{4, 2}, std::vector<float>(8, 1));
  onnx::NodeProto& scan = m.node("Scan", batched ? Names{"", "w", "steps"} : Names{"w", "steps"}, {"result", "all"});
  setInteger(scan, "num_scan_inputs", 1);
  onnx::GraphProto& body = subgraphOf(scan, "body", {"s", "e"}, {"t", "o"});
  add(body, "Add", {"s", "e"}, {"o"});
  setInteger(m.node("ReduceSum", {"all"}, {"sum"}), "keepdims", 0);
  setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
  m.node("Add", {"sum", "zero"}, {"loss"});
  return m;
}

TEST(Work, OfRecurrencesCounts) {
  // 16 * 30,000 are few enough; the operations that they become are not.
  ModelBuilder m = ModelBuilder::unary("LSTM", 14, {30000, 1, 1}, std::vector<float>(30000, 1), {"W", "R"});
  m.floats("W", {1, 4, 1}, {1, 1, 1, 1});
  m.floats("R", {1, 4, 1}, {1, 1, 1, 1});
  setInteger(*m.graph().mutable_node(0), "hidden_size", 1);
  EXPECT_THAT(errorOf(m), HasSubstr("operations (before the backward pass)"));
}

TEST(Scan, StatesThatAreNoTensorsAreNamed) {
  auto bodyOf = [](ModelBuilder& m) -> onnx::GraphProto& {
    return *m.graph().mutable_node(0)->mutable_attribute(1)->mutable_g();
  };
  ModelBuilder good = scanned(16);
  add(bodyOf(good), "Identity", {"o"}, {"t"});
  EXPECT_EQ(lossOf(good), 4 * 3 + 2 * (1 + 2 + 3 + 4));
  ModelBuilder optional = scanned(16);
  add(bodyOf(optional), "Optional", {}, {"t"});
  EXPECT_THAT(errorOf(optional), HasSubstr("the state 't' is not a tensor"));
  ModelBuilder sequence = scanned(16);
  add(bodyOf(sequence), "SequenceConstruct", {"o"}, {"t"});
  EXPECT_THAT(errorOf(sequence), HasSubstr("the state 't' is not a tensor"));
  // Before opset 9 a function may make the sequence.
  ModelBuilder batched = scanned(8);
  onnx::FunctionProto& f = *batched.model.add_functions();
  f.set_name("Pack");
  f.set_domain("local");
  f.add_input("a");
  f.add_output("b");
  f.add_opset_import()->set_version(11);
  add(f, "SequenceConstruct", {"a"}, {"b"});
  add(bodyOf(batched), "Pack", {"o"}, {"t"}).set_domain("local");
  EXPECT_THAT(errorOf(batched), HasSubstr("the state 't' is not a tensor"));
}

// The new dimension of a Scan that never runs is where scan_output_axes says.
TEST(Scan, OfLengthZeroKeepsItsAxes) {
  for (int64_t axis : {1, -1}) {
    ModelBuilder m(11);
    m.input("x", {"N"}).output("loss", {});
    m.floats("none", {0, 2}, {});
    m.floats("w", {2, 3}, {1, 2, 3, 4, 5, 6});
    onnx::NodeProto& scan = m.node("Scan", {"none"}, {"all"});
    setInteger(scan, "num_scan_inputs", 1);
    setIntegers(scan, "scan_output_axes", {axis});
    onnx::GraphProto& body = subgraphOf(scan, "body", {"e"}, {"o"});
    add(body, "Neg", {"e"}, {"o"});
    auto* type = body.mutable_output(0)->mutable_type()->mutable_tensor_type();
    type->set_elem_type(onnx::TensorProto::FLOAT);
    type->mutable_shape()->add_dim()->set_dim_value(2);
    setInteger(m.node("Concat", {"all", "w"}, {"both"}), "axis", 1);  // [2, 0] and [2, 3]
    setInteger(m.node("ReduceSum", {"both"}, {"sum"}), "keepdims", 0);
    setInteger(m.node("ReduceSum", {"x"}, {"zero"}), "keepdims", 0);
    m.node("Add", {"sum", "zero"}, {"loss"});
    EXPECT_EQ(lossOf(m), 21);
  }
}

// External data of constants, of subgraphs and of functions count as those of initializers do.
TEST(Links, ThatLeadOutOfTheFolderAreNamedWhereverTheyAre) {
  namespace fs = std::filesystem;
  const fs::path base = fs::path(::testing::TempDir()) / ("links-" + std::to_string(getpid()));
  fs::create_directories(base / "model");
  std::ofstream(base / "blob", std::ios::binary) << std::string(8, '\0');
  fs::create_symlink(base / "blob", base / "model" / "far.bin");
  auto external = [](onnx::TensorProto& tensor) {
    tensor = floatTensor("far", {2}, {0, 0});
    tensor.clear_raw_data();
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    setMetadata(*tensor.mutable_external_data(), "location", "far.bin");
  };
  auto constant = [&](onnx::NodeProto& node) {
    onnx::AttributeProto& value = *node.add_attribute();
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    external(*value.mutable_t());
  };
  auto notesOf = [&](const ModelBuilder& m) {
    const std::string path = (base / "model" / "m.onnx").string();
    std::ofstream(path, std::ios::binary | std::ios::trunc) << m.model.SerializeAsString();
    return import(path, withBatch(1)).warnings;
  };
  const auto note = Contains(HasSubstr("lead out of the model's folder: 'far.bin' ("));
  ModelBuilder plain = ModelBuilder::unary("Neg", 20, {2}, {1, 2});
  EXPECT_THAT(notesOf(plain), ::testing::Not(note));
  ModelBuilder node = plain;
  constant(node.node("Constant", {}, {"c"}));
  EXPECT_THAT(notesOf(node), note);
  ModelBuilder branch = plain;
  onnx::GraphProto& graph = subgraphOf(branch.node("If", {"yes"}, {"c"}), "then_branch", {}, {"r"});
  external(*graph.add_initializer());
  EXPECT_THAT(notesOf(branch), note);
  ModelBuilder function = plain;
  onnx::FunctionProto& f = *function.model.add_functions();
  f.set_name("F");
  f.set_domain("local");
  f.add_output("c");
  constant(add(f, "Constant", {}, {"c"}));
  EXPECT_THAT(notesOf(function), note);
  fs::remove_all(base);
}

}  // namespace
}  // namespace sheaf::test
