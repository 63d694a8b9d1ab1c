// What cannot be taken is one error that names the place and the remedy; nothing crashes.
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "test/Paths.h"
#include "test/frontend/ModelBuilder.h"

using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

const std::string kModels = sheaf::paths::kModels;

// loss = mean(x * w), x [N, 2].
ModelBuilder small() {
  ModelBuilder m;
  m.input("x", {"N", 2}).output("loss", {});
  m.floats("w", {2}, {1, 2});
  m.node("Mul", {"x", "w"}, {"y"});
  setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
  return m;
}

TEST(Errors, NoneForTheSmallModel) {
  EXPECT_EQ(errorOf(small(), withBatch(4)), "");
}

TEST(Errors, Options) {
  auto with = [](auto change) {
    frontend::ImportOptions options = withBatch(4);
    change(options);
    return errorOf(small(), options);
  };
  EXPECT_THAT(with([](auto& o) { o.ranks = 3; }), HasSubstr("--batch 4 does not divide into 3 ranks"));
  EXPECT_THAT(with([](auto& o) { o.ranks = 0; }), HasSubstr("--ranks must be at least 1"));
  EXPECT_THAT(with([](auto& o) { o.batch = 0; }), HasSubstr("give --batch B"));
  EXPECT_THAT(with([](auto& o) { o.bind = {{"S", 3}}; }), HasSubstr("--bind S: no input has a dimension of that name"));
  EXPECT_THAT(with([](auto& o) { o.bind = {{"N", -1}}; }), HasSubstr("a dimension must be positive"));
  EXPECT_THAT(with([](auto& o) { o.loss = "y"; }), HasSubstr("'y' is not an output; the outputs are 'loss' FLOAT[]"));
  EXPECT_THAT(with([](auto& o) { o.loss = "cross_entropy(q)"; }), HasSubstr("'q' is not an output"));
  EXPECT_THAT(with([](auto& o) { o.train = {"v"}; }), HasSubstr("--train 'v' matches no parameter"));
  EXPECT_THAT(with([](auto& o) { o.freeze = {"("}; }), HasSubstr("'(' is not a regular expression"));
  EXPECT_THAT(with([](auto& o) { o.freeze = {"w"}; }),
              HasSubstr("nothing is trainable: --freeze 'w' freezes the only parameter"));
  EXPECT_THAT(with([](auto& o) { o.train = {"w"}, o.freeze = {".*"}; }),
              HasSubstr("--freeze '.*' freezes all that --train 'w' names"));
  EXPECT_THAT(with([](auto& o) { o.rows = {{"x", 0}, {"x", 0}}; }), HasSubstr("names the input 'x' twice"));
}

TEST(Errors, Loss) {
  ModelBuilder integer = small();
  integer.graph().mutable_output(0)->mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::INT64);
  EXPECT_THAT(errorOf(integer, withBatch(4)), HasSubstr("'loss' INT64[], is not of a floating-point type"));
  ModelBuilder none = small();
  none.graph().clear_output();
  none.output("y", {"N", 2});
  EXPECT_THAT(errorOf(none, withBatch(4)), HasSubstr("Give --loss 'cross_entropy(OUTPUT)'"));
  ModelBuilder two = small();
  two.output("other", {});
  EXPECT_THAT(errorOf(two, withBatch(4)), HasSubstr("choose one with --loss OUTPUT"));
  ModelBuilder constant = small();
  constant.graph().clear_initializer();
  constant.input("w", {"N"});
  EXPECT_THAT(errorOf(constant, withBatch(2)), HasSubstr("nothing is trainable"));
}

TEST(Errors, Graph) {
  ModelBuilder unknown = small();
  unknown.node("Frobnicate", {"x"}, {"w2"}, "com.example").set_name("first");
  unknown.graph().mutable_node(0)->set_input(1, "w2");
  unknown.graph().mutable_node()->SwapElements(0, 2);
  EXPECT_THAT(errorOf(unknown, withBatch(4)),
              HasSubstr("node 'first' (com.example.Frobnicate, opset 0): the operator is not supported"));
  ModelBuilder old = small();
  old.model.mutable_opset_import(0)->set_version(6);
  EXPECT_THAT(errorOf(old, withBatch(4)), HasSubstr("not supported at this opset (it is from 7)"));
  ModelBuilder cycle = small();
  cycle.graph().mutable_node(0)->set_input(0, "loss");
  EXPECT_THAT(errorOf(cycle, withBatch(4)), HasSubstr("'loss' is used before it is defined"));
  ModelBuilder undefined = small();
  undefined.graph().mutable_node(0)->set_input(0, "z");
  EXPECT_THAT(
      errorOf(undefined, withBatch(4)),
      HasSubstr("node 'y' (Mul): nothing makes 'z', which is not an input, an initializer or an output of a node"));
  ModelBuilder unmade = small();
  unmade.graph().mutable_output(0)->set_name("Loss");
  EXPECT_THAT(errorOf(unmade, withBatch(3, 2)), HasSubstr("output 'Loss': nothing makes 'Loss'"));
  EXPECT_THAT(errorOf(unmade, withBatch(3, 2)), HasSubstr("did you mean 'loss'?"));
  ModelBuilder domain = small();
  domain.graph().mutable_node(0)->set_op_type("FusedMatMul");
  domain.graph().mutable_node(0)->set_domain("com.microsoft");
  EXPECT_THAT(errorOf(domain, withBatch(4)), HasSubstr("the model does not import the domain 'com.microsoft'"));
  ModelBuilder twice = small();
  twice.node("Neg", {"x"}, {"y"});
  EXPECT_THAT(errorOf(twice, withBatch(4)), HasSubstr("defines the value 'y' twice"));
  ModelBuilder axis = small();
  axis.model.mutable_opset_import(0)->set_version(13);  // the last with axes as an attribute
  setIntegers(*axis.graph().mutable_node(1), "axes", {2});
  EXPECT_THAT(errorOf(axis, withBatch(4)), HasSubstr("axis 2 is out of range for rank 2"));
  ModelBuilder shapes = small();
  *shapes.graph().mutable_initializer(0) = floatTensor("w", {3}, {1, 2, 3});
  EXPECT_THAT(errorOf(shapes, withBatch(4)), HasSubstr("shapes [4x2] [3] do not broadcast together"));
  ModelBuilder missing = small();
  missing.graph().mutable_node(0)->mutable_input()->RemoveLast();
  EXPECT_THAT(errorOf(missing, withBatch(4)), HasSubstr("input 1 is missing"));
  ModelBuilder symbol;
  symbol = small();
  symbol.graph().clear_input();
  symbol.input("x", {"N", "S"});
  EXPECT_THAT(errorOf(symbol, withBatch(4)), HasSubstr("dimension 'S' is not bound; give --bind 'S=SIZE'"));
  ModelBuilder fixed = small();
  fixed.graph().clear_input();
  fixed.input("x", {8, 2});
  EXPECT_THAT(errorOf(fixed, withBatch(4)), HasSubstr("give --batch 8, or"));
  EXPECT_THAT(errorOf(fixed, withBatch(0, 3)), HasSubstr("the batch of 8 rows that the model was exported for does not "
                                                         "divide into 3 ranks: give --ranks 2 or 4, or"));
  for (int64_t batch : {3, 4})
    EXPECT_THAT(errorOf(fixed, withBatch(batch, 3)), HasSubstr("give --batch 8 and --ranks 2 or 4, or"));
  ModelBuilder two = fixed;
  two.input("b", {4, 2});
  two.node("Add", {"y", "b"}, {"sum"});
  two.graph().mutable_node(1)->set_input(0, "sum");
  two.graph().mutable_node()->SwapElements(1, 2);
  for (int64_t batch : {0, 3, 4, 8})
    EXPECT_THAT(errorOf(two, withBatch(batch)), HasSubstr("export the model with one batch for both")) << batch;
  ModelBuilder sequence = small();
  sequence.graph().clear_input();
  sequence.input("x", {8, "S"});
  EXPECT_THAT(errorOf(sequence, withBatch(8)), HasSubstr("give --bind 'S=SIZE', or --rows 'x=1' if it holds the rows"));
}

TEST(Errors, Labels) {
  auto with = [](Dims labels, int type) {
    ModelBuilder m;
    m.input("x", {"N", 4}).input("labels", labels, type).output("loss", {});
    m.floats("w", {4}, {1, 2, 3, 4});
    m.node("Mul", {"x", "w"}, {"y"});
    m.node("SoftmaxCrossEntropyLoss", {"y", "labels"}, {"loss"});
    return errorOf(m, withBatch(8));
  };
  EXPECT_EQ(with({"N"}, onnx::TensorProto::INT64), "");
  EXPECT_THAT(with({"N", 1}, onnx::TensorProto::INT64),
              HasSubstr("takes integer labels of the shape [8], which is that of the scores without the classes; the "
                        "input 'labels' is i64[8, 1]"));
  EXPECT_THAT(with({"N"}, onnx::TensorProto::FLOAT), HasSubstr("the input 'labels' is f32[8]"));
}

// --bind of the symbol that holds the rows must agree with --batch.
TEST(Errors, RowsAreNotBoundToTwoSizes) {
  auto with = [](Dims table, int64_t batch, std::vector<std::pair<std::string, int64_t>> bind) {
    ModelBuilder m;
    m.input("table", table).input("x", {"N", 2}).output("loss", {});
    m.floats("w", {2}, {1, 2});
    m.node("ReduceSum", {"table"}, {"all"});
    m.node("Mul", {"x", "all"}, {"scaled"});
    m.node("Mul", {"scaled", "w"}, {"y"});
    setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    frontend::ImportOptions options = withBatch(batch);
    options.bind = bind;
    return errorOf(m, options);
  };
  EXPECT_EQ(with({"N", 3}, 8, {}), "");
  EXPECT_EQ(with({"N", 3}, 8, {{"N", 8}}), "");
  EXPECT_EQ(with({"N", "L"}, 8, {{"L", 16}}), "");
  EXPECT_EQ(with({"N", 3}, 0, {{"N", 16}}), "");
  EXPECT_THAT(with({"N", 3}, 8, {{"N", 16}}), HasSubstr("--bind N=16 is not the batch of 8: leave out --bind N"));
  EXPECT_THAT(with({"L", 3}, 8, {{"L", 16}}), HasSubstr("dimension 0 holds the rows of the batch, and --bind L=16"));
}

// Shapes and types that an op of the step cannot have.
TEST(Errors, Operands) {
  ModelBuilder classes;
  classes.input("x", {"N", 2}).output("loss", {}).floats("w", {2, 0}, {});
  classes.input("labels", {"N"}, onnx::TensorProto::INT64);
  classes.node("MatMul", {"x", "w"}, {"y"});
  classes.node("SoftmaxCrossEntropyLoss", {"y", "labels"}, {"loss"});
  EXPECT_THAT(errorOf(classes, withBatch(4)), HasSubstr("has no classes"));
  ModelBuilder filter;
  filter.input("x", {"N", 2, 3, 3}).output("loss", {}).integers("f", {2, 2, 3, 3}, std::vector<int64_t>(36, 1));
  filter.node("ConvGrad", {"x", "x", "f"}, {"y"}, "com.microsoft");
  onnx::OperatorSetIdProto& domain = *filter.model.add_opset_import();
  domain.set_domain("com.microsoft");
  domain.set_version(1);
  setIntegers(*filter.graph().mutable_node(0), "pads", {1, 1, 1, 1});
  filter.node("ReduceSum", {"y"}, {"loss"});
  EXPECT_THAT(errorOf(filter, withBatch(4)), HasSubstr("one rank and one floating-point type"));
  // A mask for more keys than there are, to which a causal mask and one for padding are added.
  ModelBuilder mask;
  mask.input("x", {"N", 3, 4, 8}).output("loss", {});
  mask.input("mask", {"N", 3, 6, 8});
  mask.integers("valid", {2}, {3, 4});
  mask.node("Attention", {"x", "x", "x", "mask", "", "", "valid"}, {"y"});
  setInteger(*mask.graph().mutable_node(0), "is_causal", 1);
  mask.model.mutable_opset_import(0)->set_version(24);
  mask.floats("w", {1}, {2});
  mask.node("Mul", {"y", "w"}, {"z"});
  mask.node("ReduceSum", {"z"}, {"loss"});
  EXPECT_THAT(errorOf(mask, withBatch(2)), HasSubstr("do not broadcast together"));
}

TEST(Errors, Initializers) {
  auto with = [](auto change) {
    ModelBuilder m = small();
    change(*m.graph().mutable_initializer(0));
    return errorOf(m, withBatch(4));
  };
  EXPECT_THAT(with([](auto& t) { t.set_dims(0, -2); }), HasSubstr("negative dimension or too many elements"));
  EXPECT_THAT(with([](auto& t) { t.set_dims(0, int64_t(1) << 50); }), HasSubstr("too many elements"));
  EXPECT_THAT(with([](auto& t) { t.add_dims(2); }), HasSubstr("has 8 bytes where its shape takes 16"));
  EXPECT_THAT(with([](auto& t) { t.set_data_type(onnx::TensorProto::STRING); }),
              HasSubstr("type STRING are not supported"));
  EXPECT_THAT(with([](auto& t) { t.clear_raw_data(), t.add_float_data(1); }),
              HasSubstr("has 1 elements where its shape takes 2"));
  auto external = [&](const std::string& location, const std::string& length) {
    return with([&](auto& t) {
      t.clear_raw_data();
      t.set_data_location(onnx::TensorProto::EXTERNAL);
      setMetadata(*t.mutable_external_data(), "location", location);
      setMetadata(*t.mutable_external_data(), "offset", "16");
      if (!length.empty()) setMetadata(*t.mutable_external_data(), "length", length);
    });
  };
  EXPECT_EQ(external("weights.bin", "8"), "");
  EXPECT_EQ(external("folder/weights.bin", ""), "");
  EXPECT_THAT(external("../weights.bin", ""),
              HasSubstr("'../weights.bin', which is not a path within the model's folder"));
  EXPECT_THAT(external("a/../../b", ""), HasSubstr("not a path within the model's folder"));
  EXPECT_THAT(external("/etc/passwd", ""), HasSubstr("not a path within the model's folder"));
  EXPECT_THAT(external("", ""), HasSubstr("not a path within the model's folder"));
  EXPECT_THAT(external("w", "9"), HasSubstr("has 9 bytes where its shape takes 8"));
  EXPECT_THAT(external("w", "-8"), HasSubstr("has length '-8', not a number of bytes"));
  ModelBuilder twice = small();
  twice.floats("w", {2}, {1, 2});
  EXPECT_THAT(errorOf(twice, withBatch(4)), HasSubstr("two initializers named 'w'"));
}

TEST(Errors, Functions) {
  ModelBuilder m = small();
  onnx::FunctionProto& f = *m.model.add_functions();
  f.set_name("F");
  f.set_domain("local");
  f.add_input("a");
  f.add_output("b");
  onnx::NodeProto& inner = *f.add_node();
  inner.set_op_type("F");
  inner.set_domain("local");
  inner.add_input("a");
  inner.add_output("b");
  m.graph().mutable_node(0)->set_op_type("F");
  m.graph().mutable_node(0)->set_domain("local");
  m.graph().mutable_node(0)->mutable_input()->RemoveLast();
  EXPECT_THAT(errorOf(m, withBatch(4)), HasSubstr("the function calls itself"));
}

TEST(Errors, Files) {
  EXPECT_THAT(import("/no/such/model.onnx").errors.at(0), HasSubstr("cannot read the model"));
  EXPECT_THAT(import(kModels + "/mlp.json").errors.at(0), HasSubstr("is not an ONNX model, or is truncated"));
}

// loss = sum of what the operator makes of x [1, 4] * w and constants.
std::string errorOfNode(const std::string& op, Names constants, int64_t opset,
                        const std::function<void(ModelBuilder&, onnx::NodeProto&)>& change,
                        const std::string& domain = "") {
  ModelBuilder m(opset);
  m.input("x", {1, 4}).output("loss", {});
  m.floats("w", {1, 4}, {1, 2, 3, 4});
  m.node("Mul", {"x", "w"}, {"p"});
  constants.insert(constants.begin(), "p");
  onnx::NodeProto& node = m.node(op, constants, {"y"}, domain);
  onnx::OperatorSetIdProto& import = *m.model.add_opset_import();
  import.set_domain(domain.empty() ? "none" : domain);
  import.set_version(1);
  change(m, node);
  setInteger(m.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  return errorOf(m);  // only one: import() fails the test where there are more
}

TEST(Errors, AnOperatorThatIsRefusedIsRefusedOnce) {
  // Scale and bias each have the same fault.
  EXPECT_THAT(errorOfNode("LayerNormalization", {"s", "s"}, 17,
                          [](auto& m, auto&) {
                            m.floats("s", {3}, {1, 2, 3});
                          }),
              HasSubstr("cannot broadcast [3] to [4]"));
  EXPECT_THAT(errorOfNode("LayerNormalization", {"w", "b"}, 17,
                          [](auto& m, auto&) {
                            m.integers("b", {4}, {1, 2, 3, 4});
                          }),
              HasSubstr("bias and input differ in element type"));
  auto twoAxes = [](auto& m, auto&) { m.integers("axes", {2}, {0, 0}); };
  EXPECT_THAT(errorOfNode("CumSum", {"axes"}, 14, twoAxes), HasSubstr("takes one axis"));
  EXPECT_THAT(errorOfNode("CumProd", {"axes"}, 26, twoAxes), HasSubstr("takes one axis"));
  EXPECT_THAT(errorOfNode(
                  "ConcatTraining", {"", "p"}, 14, [](auto&, auto&) {}, "com.microsoft"),
              HasSubstr("an input is missing"));
}

TEST(Errors, GradientsOfOnnxRuntimeThatDoNotFit) {
  auto none = [](auto&, auto&) {};
  auto image = [](auto& m, auto& node) {
    m.floats("f", {1, 1, 1, 1}, {1});
    setIntegers(node, "kernel_shape", {1, 1});
    setInteger(node, "group", 0);
    m.integers("shape", {4}, {1, 1, 2, 2});
    m.node("Reshape", {"p", "shape"}, {"i"});
    m.graph().mutable_node()->SwapElements(1, 2);
  };
  auto images = [&](int64_t group, const Names& inputs) {
    return errorOfNode(
        "ConvGrad", {inputs[1], inputs[2]}, 14,
        [&](ModelBuilder& m, onnx::NodeProto& node) {
          node.set_input(0, inputs[0]);
          image(m, node);
          m.graph().mutable_node(2)->mutable_attribute(1)->set_i(group);
        },
        "com.microsoft");
  };
  EXPECT_THAT(images(0, {"i", "i", "f"}), HasSubstr("in 0 groups"));
  EXPECT_THAT(images(1, {"f", "i", "f"}), HasSubstr("gradient"));
  EXPECT_THAT(errorOfNode(
                  "SoftmaxGrad_13", {"s"}, 14,
                  [](auto& m, auto&) {
                    m.floats("s", {4}, {1, 2, 3, 4});
                  },
                  "com.microsoft"),
              HasSubstr("a gradient of the result's shape"));
  EXPECT_THAT(errorOfNode("ATen", {"w"}, 14, none, "org.pytorch.aten"), HasSubstr("the operator ''"));
}

// What would take forever, or memory without bound, is refused in a moment.
TEST(Errors, Bounds) {
  ModelBuilder m(16);
  m.input("x", {1, 4}).output("loss", {});
  m.floats("w", {1, 4}, {1, 2, 3, 4});
  m.integers("trips", {}, {int64_t(1) << 40});
  m.node("Mul", {"x", "w"}, {"p"});
  m.node("SequenceConstruct", {"p"}, {"one"});
  onnx::NodeProto& loop = m.node("Loop", {"trips", "", "one"}, {"many"});
  onnx::AttributeProto& body = *loop.add_attribute();
  body.set_name("body");
  body.set_type(onnx::AttributeProto::GRAPH);
  for (const char* name : {"i", "go", "s"}) body.mutable_g()->add_input()->set_name(name);
  for (const char* name : {"go", "t"}) body.mutable_g()->add_output()->set_name(name);
  onnx::NodeProto& insert = *body.mutable_g()->add_node();
  insert.set_op_type("SequenceInsert");
  insert.add_input("s");
  insert.add_input("p");
  insert.add_output("t");
  setInteger(m.node("ConcatFromSequence", {"many"}, {"y"}), "axis", 0);
  setInteger(m.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  EXPECT_THAT(errorOf(m), HasSubstr("expand to more than"));

  auto crop = [](double begin, double end, bool antialias) {
    return errorOfNode("Resize", {"roi", "scales"}, 18, [&](ModelBuilder& m, onnx::NodeProto& node) {
      setString(node, "mode", "linear");
      setString(node, "coordinate_transformation_mode", "tf_crop_and_resize");
      setInteger(node, "antialias", antialias);
      m.floats("roi", {4}, {0, float(begin), 1, float(end)}).set_data_type(onnx::TensorProto::FLOAT);
      m.floats("scales", {2}, {1, 1e-9f});
    });
  };
  EXPECT_THAT(crop(0, 1e10, true), HasSubstr("too large"));
  EXPECT_THAT(crop(1e30, 2e30, false), HasSubstr("out of range"));
}

// Truncated and mutated files: an error or a module, never a crash.
TEST(Errors, DamagedFiles) {
  std::string bytes = small().model.SerializeAsString();
  std::string path = ::testing::TempDir() + "/damaged-" + std::to_string(getpid()) + ".onnx";
  auto attempt = [&](const std::string& data) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << data;
    return import(path, withBatch(4)).errors.size();
  };
  for (size_t n = 0; n + 1 < bytes.size(); ++n) attempt(bytes.substr(0, n));
  std::mt19937 random(1);
  for (int i = 0; i < 1500; ++i) {
    std::string data = bytes;
    for (int k = random() % 4; k >= 0; --k) data[random() % data.size()] = char(random());
    attempt(data);
  }
  unlink(path.c_str());
}

}  // namespace
}  // namespace sheaf::test
