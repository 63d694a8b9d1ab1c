// Resize, Upsample, GridSample and Col2Im, where rounding, sizes of 1 and 0, or borders decide: nodes on known inputs.
#include <gmock/gmock.h>

#include <cmath>
#include <optional>

#include "frontend/onnx/importer/Importer.h"
#include "ir/Train/Evaluator.h"
#include "test/frontend/ModelBuilder.h"

namespace sheaf::test {
namespace {

using namespace mlir;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using train::Constant;
using Numbers = std::vector<double>;
using Sizes = std::vector<int64_t>;

class Resampling : public ::testing::Test {
 protected:
  Resampling() { context.loadDialect<train::TrainDialect, func::FuncDialect>(); }

  // The nodes that follow are those of a model of this producer, which states the size of a vector `y`.
  void begin(const std::string& producer = "", std::optional<int64_t> stated = {}) {
    ModelBuilder m = ModelBuilder::unary("Neg", 20, {1}, {1});
    m.model.set_producer_name(producer);
    if (stated) {
      m.graph().clear_output();
      m.output("y", {*stated});
    }
    importer.reset();
    model = frontend::Model::load(context, m.save());
    importer = std::make_unique<frontend::Importer>(context, *model, options);
  }

  Constant floats(Sizes shape, const Numbers& values) {
    return Constant::fromTensor({RankedTensorType::get(shape, Float32Type::get(&context)), values, {}});
  }
  Constant integers(const Sizes& values) {
    return Constant::integers(RankedTensorType::get({int64_t(values.size())}, IntegerType::get(&context, 64)), values);
  }
  // 0, 1, ...: each element is its own index.
  Constant indices(int64_t size) {
    Numbers values(size);
    for (int64_t i = 0; i < size; ++i) values[i] = double(i);
    return floats({size}, values);
  }

  // The result of the node; `shape` is its shape, or `error` says why the import failed.
  Numbers run(onnx::NodeProto node, const std::vector<std::optional<Constant>>& inputs) {
    if (!importer) begin();
    error.clear();
    shape.clear();
    ScopedDiagnosticHandler handler(&context, [&](Diagnostic& d) { error += d.str(); });
    OpBuilder& builder = importer->builder;
    const Location location = builder.getUnknownLoc();
    OwningOpRef<ModuleOp> module = ModuleOp::create(location);
    builder.setInsertionPointToEnd(module->getBody());
    auto function = func::FuncOp::create(builder, location, "step", builder.getFunctionType({}, {}));
    builder.setInsertionPointToEnd(function.addEntryBlock());
    importer->emit.forget();
    frontend::Scope scope;
    scope.root = true;
    for (auto [i, input] : llvm::enumerate(inputs)) {
      const std::string name = input ? "in" + std::to_string(i) : "";
      node.add_input(name);
      if (input) scope.values[name] = {frontend::Tensor(*input), std::nullopt};
    }
    node.add_output("y");
    if (failed(importer->importNode(node, scope, 1))) return {};
    const frontend::Tensor result = importer->lookup("y", scope, nullptr)->tensor;
    shape.assign(result.shape().begin(), result.shape().end());
    if (result.count() == 0) return {};
    const Value value = importer->emit.materialize(result);
    func::ReturnOp::create(builder, location, value);
    function.setType(builder.getFunctionType({}, value.getType()));
    auto evaluation = train::evaluateFunction(function, {}, {});
    return succeeded(evaluation) ? evaluation->results.at(0).f : Numbers();
  }

  static onnx::NodeProto resize(const std::string& mode, const std::string& coordinates, const std::string& nearest) {
    onnx::NodeProto node;
    node.set_op_type("Resize");
    setString(node, "mode", mode);
    setString(node, "coordinate_transformation_mode", coordinates);
    if (mode == "nearest") setString(node, "nearest_mode", nearest);
    return node;
  }
  Numbers nearestBySize(const std::string& coordinates, const std::string& nearest, int64_t from, int64_t to) {
    return run(resize("nearest", coordinates, nearest), {indices(from), {}, {}, integers({to})});
  }
  Numbers nearestByScale(int64_t from, float scale) {
    return run(resize("nearest", "asymmetric", "floor"), {indices(from), {}, floats({1}, {scale})});
  }

  MLIRContext context{MLIRContext::Threading::DISABLED};
  std::unique_ptr<frontend::Model> model;
  const frontend::ImportOptions options;
  std::unique_ptr<frontend::Importer> importer;
  std::string error;
  Sizes shape;
};

TEST_F(Resampling, NearestBySizesIsExact) {
  EXPECT_EQ(nearestBySize("asymmetric", "floor", 14, 18).at(9), 7);
  struct Way {
    const char *coordinates, *nearest;
    int64_t (*element)(int64_t x, int64_t in, int64_t out);
  };
  const Way ways[] = {
      {"asymmetric", "floor", [](int64_t x, int64_t in, int64_t out) { return x * in / out; }},
      {"asymmetric", "ceil", [](int64_t x, int64_t in, int64_t out) { return (x * in + out - 1) / out; }},
      {"half_pixel", "round_prefer_ceil",
       [](int64_t x, int64_t in, int64_t out) { return (2 * x + 1) * in / (2 * out); }},
      {"half_pixel", "round_prefer_floor",
       [](int64_t x, int64_t in, int64_t out) { return ((2 * x + 1) * in + 2 * out - 1) / (2 * out) - 1; }},
      {"align_corners", "floor",
       [](int64_t x, int64_t in, int64_t out) { return out == 1 ? 0 : x * (in - 1) / (out - 1); }},
  };
  for (const Way& way : ways)
    for (int64_t in = 2; in <= 112; in += way.element == ways[0].element ? 2 : 7) {
      begin();  // since one import has a limit of operations
      for (int64_t out = 1; out <= 112; ++out) {
        Numbers expected;
        for (int64_t x = 0; x < out; ++x)
          expected.push_back(double(std::clamp<int64_t>(way.element(x, in, out), 0, in - 1)));
        ASSERT_EQ(nearestBySize(way.coordinates, way.nearest, in, out), expected)
            << way.coordinates << " " << way.nearest << " " << in << " to " << out << error;
      }
    }
}

// As ONNX Runtime computes.
TEST_F(Resampling, ScalesAreNumbersOfF32) {
  EXPECT_EQ(nearestByScale(10, 0.7f).size(), 7u);
  EXPECT_EQ(nearestByScale(20, 1.1f).at(11), 10);
  for (int64_t in = 1; in <= 64; ++in)
    for (int tenths = 1; tenths <= 40; ++tenths) {
      const float scale = float(tenths) / 10;
      Numbers expected;
      for (float x = 0; x < std::floor(float(in) * scale); ++x)
        expected.push_back(std::min(double(std::floor(x / scale)), double(in - 1)));
      ASSERT_EQ(nearestByScale(in, scale), expected) << in << " by " << scale << error;
    }
}

// PyTorch's results for F.interpolate, whose indices are the floor of a product in f32.
TEST_F(Resampling, ExportsOfPyTorchAreResizedAsPyTorchDoes) {
  begin("pytorch");
  EXPECT_EQ(nearestBySize("asymmetric", "floor", 26, 22).at(11), 12);
  EXPECT_EQ(nearestBySize("asymmetric", "floor", 14, 18).at(9), 7);
  EXPECT_EQ(nearestByScale(20, 1.1f).at(11), 10);
  for (int64_t in = 2; in <= 64; in += 3)
    for (int64_t out = 1; out <= 64; ++out) {
      Numbers expected;
      for (int64_t x = 0; x < out; ++x)
        expected.push_back(std::min(double(std::floor(float(x) * (float(in) / float(out)))), double(in - 1)));
      ASSERT_EQ(nearestBySize("asymmetric", "floor", in, out), expected) << in << " to " << out << error;
    }
  // To one element: the middle. To the floor of 2.4: both corners.
  EXPECT_THAT(run(resize("linear", "pytorch_half_pixel", ""), {indices(4), {}, {}, integers({1})}),
              ElementsAre(DoubleNear(1.5, 1e-6)));
  EXPECT_THAT(run(resize("linear", "align_corners", ""), {indices(4), {}, floats({1}, {0.6})}),
              ElementsAre(0, DoubleNear(3, 1e-6)));
  // The scale is the number that the program has, of f64.
  EXPECT_EQ(nearestByScale(100, 0.29f).size(), 28u);
  EXPECT_EQ(nearestByScale(11, float(1.0 / 11)).size(), 1u);
  begin("pytorch");
  for (int64_t in = 2; in <= 64; in += 3)
    for (int tenths = 1; tenths <= 40; ++tenths) {
      const double scale = double(tenths) / 10;
      Numbers expected;
      for (int64_t x = 0; x < int64_t(double(in) * scale); ++x)
        expected.push_back(std::min(double(std::floor(float(x) * float(1 / scale))), double(in - 1)));
      ASSERT_EQ(nearestByScale(in, float(scale)), expected) << in << " by " << scale << error;
    }
}

// 100 * 0.29 is below 29 in f64 and 29 in f32.
TEST_F(Resampling, TheModelStatesASizeThatRoundingDecides) {
  EXPECT_EQ(nearestByScale(100, 0.29f).size(), 29u);
  for (auto [stated, size] : {std::pair(28, 28u), {29, 29u}, {30, 29u}, {27, 29u}}) {
    begin("", stated);
    EXPECT_EQ(nearestByScale(100, 0.29f).size(), size) << stated;
  }
}

TEST_F(Resampling, ACropIsResizedAsAWhole) {
  onnx::NodeProto node = resize("linear", "tf_crop_and_resize", "");
  setFloat(node, "extrapolation_value", -1);
  EXPECT_THAT(run(node, {indices(8), floats({2}, {0, 0.5}), floats({1}, {2})}),
              Pointwise(DoubleNear(1e-6), Numbers{0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5}));
  // Its last element lies in the image, however its coordinate is rounded.
  for (float start : {0.1f, 0.3f, 0.6f})
    for (int64_t in = 2; in <= 20; in += 3)
      for (int64_t out = 2; out <= 60; ++out) {
        const Numbers y = run(node, {indices(in), floats({2}, {start, 1}), {}, integers({out})});
        ASSERT_EQ(y.size(), size_t(out)) << error;
        ASSERT_NEAR(y.back(), double(in - 1), 1e-5) << start << " " << in << " to " << out;
      }
}

TEST_F(Resampling, OneElementIsTheFirstOrTheMiddle) {
  for (int64_t in = 1; in <= 200; ++in) {
    for (const char* mode : {"nearest", "linear", "cubic"})
      for (const char* coordinates : {"pytorch_half_pixel", "align_corners"})
        EXPECT_THAT(run(resize(mode, coordinates, "round_prefer_floor"), {indices(in), {}, {}, integers({1})}),
                    ElementsAre(0))
            << mode << " " << coordinates << " " << in << error;
    EXPECT_THAT(
        run(resize("linear", "tf_crop_and_resize", ""), {indices(in), floats({2}, {0.25, 0.75}), {}, integers({1})}),
        ElementsAre(DoubleNear(double(in - 1) / 2, 1e-5)))
        << in << error;
  }
}

TEST_F(Resampling, OperandsWithoutElements) {
  const Constant x = floats({2, 1, 0, 4}, {}), scales = floats({4}, {1, 1, 2, 2});
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    run(resize(mode, "half_pixel", "floor"), {x, {}, scales});
    EXPECT_EQ(shape, (Sizes{2, 1, 0, 8})) << error;
    run(resize(mode, "half_pixel", "floor"), {x, {}, {}, integers({2, 1, 0, 3})});
    EXPECT_EQ(shape, (Sizes{2, 1, 0, 3})) << error;
    run(resize(mode, "half_pixel", "floor"), {x, {}, {}, integers({2, 1, 5, 3})});
    EXPECT_THAT(error, HasSubstr("cannot resize an axis of no elements"));
    // And a result without elements, of an operand that has some.
    run(resize(mode, "half_pixel", "floor"), {indices(4), {}, floats({1}, {0.1})});
    EXPECT_EQ(shape, Sizes{0}) << error;
  }
  onnx::NodeProto twice = resize("linear", "half_pixel", "");
  setIntegers(twice, "axes", {0, -1});
  run(twice, {indices(4), {}, floats({2}, {2, 2})});
  EXPECT_THAT(error, HasSubstr("names axis 0 twice"));
}

TEST_F(Resampling, BlocksLargerThanTheImageAreAnError) {
  onnx::NodeProto node;
  node.set_op_type("Col2Im");
  setIntegers(node, "strides", {2});
  run(node, {floats({1, 4, 1}, {1, 2, 3, 4}), integers({3}), integers({4})});
  EXPECT_THAT(error, HasSubstr("the blocks are larger than the padded image"));
  EXPECT_THAT(run(node, {floats({1, 4, 1}, {1, 2, 3, 4}), integers({5}), integers({4})}), ElementsAre(1, 2, 3, 4, 0));
  onnx::NodeProto square;
  square.set_op_type("Col2Im");
  setIntegers(square, "strides", {2, 2});
  run(square, {floats({1, 16, 1}, Numbers(16, 1)), integers({3, 3}), integers({4, 4})});
  EXPECT_THAT(error, HasSubstr("the blocks are larger than the padded image"));
}

// A node that would take forever, or memory without bound, is refused in a moment.
TEST_F(Resampling, NeighboursInManyDimensionsAreCounted) {
  for (auto [mode, spatial] : {std::pair("linear", 16), {"cubic", 30}}) {
    onnx::NodeProto node;
    node.set_op_type("GridSample");
    setString(node, "mode", mode);
    Sizes image(spatial + 2, 1), grid(image);
    grid.back() = spatial;
    begin();
    run(node, {floats(image, {1}), floats(grid, Numbers(spatial, 0))});
    EXPECT_THAT(error, HasSubstr("expand to more than")) << mode;
  }
}

}  // namespace
}  // namespace sheaf::test
