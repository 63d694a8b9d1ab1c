// ONNX's own training form: updates become optimizers that compute what the specification says.
#include <gmock/gmock.h>

#include <cmath>

#include "ir/Train/Evaluator.h"
#include "ir/Train/TrainDialect.h"
#include "test/Paths.h"
#include "test/frontend/ModelBuilder.h"

using ::testing::HasSubstr;

namespace sheaf::test {
namespace {

const std::string kModels = sheaf::paths::kModels;
constexpr const char* kTraining = "ai.onnx.preview.training";

// loss = mean(x * a * b) with a Gradient of it by a and b; the updates are the tests'.
struct TrainingModel : ModelBuilder {
  TrainingModel() {
    input("x", {"N", 2}).output("loss", {});
    floats("a", {2}, {1, 2});
    floats("b", {2}, {3, 4});
    node("Mul", {"x", "a"}, {"y"});
    node("Mul", {"y", "b"}, {"z"});
    setInteger(node("ReduceMean", {"z"}, {"loss"}), "keepdims", 0);
    auto* import = model.add_opset_import();
    import->set_domain(kTraining);
    import->set_version(1);
    onnx::NodeProto& gradient = step("Gradient", {"a", "b", "x"}, {"da", "db"}, kTraining);
    setStrings(gradient, "xs", {"a", "b"});
    setStrings(gradient, "zs", {"x"});
    setString(gradient, "y", "loss");
    *info().mutable_algorithm()->add_initializer() = floatTensor("rate", {}, {0.1f});
  }
  onnx::TrainingInfoProto& info() {
    return model.training_info_size() ? *model.mutable_training_info(entry) : *model.add_training_info();
  }
  // What follows belongs to another entry.
  void nextEntry() {
    model.add_training_info();
    ++entry;
  }
  // a -= rate * da, and the same for b.
  void descend() {
    for (const std::string x : {"a", "b"}) {
      step("Mul", {"rate", "d" + x}, {"delta." + x});
      step("Sub", {x, "delta." + x}, {x + ".next"});
      bind(x, x + ".next");
    }
  }
  int entry = 0;
  onnx::NodeProto& step(const std::string& op, Names inputs, Names outputs, const std::string& domain = "") {
    onnx::NodeProto& n = *info().mutable_algorithm()->add_node();
    n.set_op_type(op);
    n.set_domain(domain);
    for (const std::string& name : inputs) n.add_input(name);
    for (const std::string& name : outputs) n.add_output(name);
    return n;
  }
  void bind(const std::string& name, const std::string& next) {
    setMetadata(*info().mutable_update_binding(), name, next);
  }
  // A counter T that every step increments.
  void counter(int64_t start) {
    integers("T", {}, {start});
    integers("one", {}, {1});
    step("Add", {"T", "one"}, {"T.next"});
    bind("T", "T.next");
  }
};

train::OptimizerOp optimizerOf(Imported& m, const std::string& parameter) {
  auto op = m.module->lookupSymbol<train::ParameterOp>(parameter);
  auto name = op->getAttrOfType<mlir::FlatSymbolRefAttr>("train.optimizer");
  return name ? m.module->lookupSymbol<train::OptimizerOp>(name.getAttr()) : train::OptimizerOp();
}

train::Tensor scalar(mlir::MLIRContext& context, double v) {
  train::Tensor t = train::Tensor::zeros(mlir::RankedTensorType::get({}, mlir::Float32Type::get(&context)));
  t.f[0] = v;
  return t;
}

// A step scalar as the runtime computes it for update t.
double stepScalar(mlir::Attribute attribute, int64_t t) {
  auto entry = mlir::cast<train::ScalarAttr>(attribute);
  const double v = entry.getValue().getValueAsDouble();
  switch (entry.getKind()) {
    case train::ScalarKind::constant:
      return v;
    case train::ScalarKind::step:
      return double(t);
    case train::ScalarKind::first_step:
      return t == 1;
    case train::ScalarKind::bias_correction:
      return 1 - std::pow(v, double(t));
    case train::ScalarKind::sqrt_bias_correction:
      return std::sqrt(1 - std::pow(v, double(t)));
    default:
      ADD_FAILURE() << "not of an imported rule: " << train::stringifyScalarKind(entry.getKind()).str();
      return 0;
  }
}

// The parameter's value after each of `steps` updates with the gradients 1, 2, ..., or that of a state.
std::vector<double> trajectory(train::OptimizerOp op, double x, int steps, int state = -1) {
  mlir::MLIRContext& context = *op.getContext();
  std::vector<double> values, states(op.getStates().size());
  for (int t = 1; t <= steps; ++t) {
    std::vector<train::Tensor> arguments{scalar(context, x), scalar(context, t)};
    for (double s : states) arguments.push_back(scalar(context, s));
    for (mlir::Attribute a : op.getScalars()) arguments.push_back(scalar(context, stepScalar(a, t)));
    auto result = train::evaluateRegion(op.getBody(), arguments);
    if (mlir::failed(result)) return {};
    x = result->results[0].f[0];
    for (size_t i = 0; i < states.size(); ++i) states[i] = result->results[1 + i].f[0];
    values.push_back(state < 0 ? x : states[state]);
  }
  return values;
}

TEST(TrainingInfo, ModelOfTheReferenceRun) {
  Imported m = import(kModels + "/mlp-training-info.onnx", withBatch(8));
  ASSERT_TRUE(m.module);
  EXPECT_EQ(m.count("optimizer"), 1);  // six equal updates
  for (auto parameter : m.module->getOps<train::ParameterOp>())
    EXPECT_TRUE(parameter->hasAttr("train.optimizer")) << parameter.getSymName().str();
  auto values = trajectory(optimizerOf(m, "fc1.weight"), 1, 2);
  EXPECT_NEAR(values[0], 0.9, 1e-7);
  EXPECT_NEAR(values[1], 0.7, 1e-7);
  // With --optimizer its own updates do not count.
  auto options = withBatch(8);
  options.optimizer = "sgd:lr=0.1";
  EXPECT_EQ(import(kModels + "/mlp-training-info.onnx", options).count("optimizer"), 0);
}

TEST(TrainingInfo, ElementwiseUpdateWithAState) {
  TrainingModel m;
  m.floats("a.velocity", {2}, {0, 0});
  *m.info().mutable_algorithm()->add_initializer() = floatTensor("decay", {1}, {0.5f});
  m.step("Mul", {"decay", "a.velocity"}, {"kept"});
  m.step("Add", {"kept", "da"}, {"v.next"});
  m.step("Mul", {"rate", "v.next"}, {"delta"});
  m.step("Sub", {"a", "delta"}, {"a.next"});
  m.bind("a", "a.next");
  m.bind("a.velocity", "v.next");
  Imported i = import(m, withBatch(2));
  ASSERT_TRUE(i.module);
  EXPECT_THAT(i.decisions(), HasSubstr("b: frozen, not among the Gradient operator's xs"));
  auto op = optimizerOf(i, "a");
  ASSERT_TRUE(op);
  EXPECT_EQ(mlir::cast<mlir::StringAttr>(op.getStates()[0]).getValue(), "velocity");
  auto values = trajectory(op, 1, 3);
  double x = 1, v = 0;
  for (int t = 1; t <= 3; ++t) {
    v = 0.5 * v + t;
    x -= double(0.1f) * v;
    EXPECT_NEAR(values[t - 1], x, 1e-12);
  }
}

class Counter : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(StartsAt, Counter, ::testing::Values(0, 1));

TEST_P(Counter, Adam) {
  TrainingModel m;
  m.counter(GetParam());
  for (const char* name : {"Va", "Vb", "Ha", "Hb"}) m.floats(name, {2}, {0, 0});
  onnx::NodeProto& adam = m.step("Adam", {"rate", "T", "a", "b", "da", "db", "Va", "Vb", "Ha", "Hb"},
                                 {"a1", "b1", "Va1", "Vb1", "Ha1", "Hb1"}, kTraining);
  setFloat(adam, "alpha", 0.5);
  setFloat(adam, "beta", 0.75);
  setFloat(adam, "epsilon", 0.25);
  setFloat(adam, "norm_coefficient", 0.125);
  setFloat(adam, "norm_coefficient_post", 0.0625);
  for (const char* name : {"a", "b", "Va", "Vb", "Ha", "Hb"}) m.bind(name, std::string(name) + "1");
  Imported i = import(m, withBatch(2));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("optimizer"), 1);
  auto values = trajectory(optimizerOf(i, "b"), 3, 4);
  double x = 3, v = 0, h = 0, rate = double(0.1f);
  for (int t = 1; t <= 4; ++t) {
    double T = GetParam() + t - 1, g = 0.125 * x + t;
    v = 0.5 * v + 0.5 * g;
    h = 0.75 * h + 0.25 * g * g;
    double adjusted = T > 0 ? rate * std::sqrt(1 - std::pow(0.75, T)) / (1 - std::pow(0.5, T)) : rate;
    x = (1 - 0.0625) * (x - adjusted * v / (std::sqrt(h) + 0.25));
    EXPECT_NEAR(values[t - 1], x, 1e-12) << t;
  }
}

TEST_P(Counter, Momentum) {
  for (const char* mode : {"standard", "nesterov"}) {
    TrainingModel m;
    m.counter(GetParam());
    m.floats("Va", {2}, {0, 0});
    onnx::NodeProto& momentum = m.step("Momentum", {"rate", "T", "a", "da", "Va"}, {"a1", "Va1"}, kTraining);
    setFloat(momentum, "alpha", 0.5);
    setFloat(momentum, "beta", 0.25);
    setFloat(momentum, "norm_coefficient", 0.125);
    setString(momentum, "mode", mode);
    m.bind("a", "a1");
    m.bind("Va", "Va1");
    Imported i = import(m, withBatch(2));
    ASSERT_TRUE(i.module);
    auto values = trajectory(optimizerOf(i, "a"), 3, 4);
    double x = 3, v = 0, rate = double(0.1f);
    for (int t = 1; t <= 4; ++t) {
      double g = 0.125 * x + t, beta = GetParam() + t - 1 > 0 ? 0.25 : 1;
      v = 0.5 * v + beta * g;
      x -= rate * (std::string(mode) == "nesterov" ? g + 0.5 * v : v);
      EXPECT_NEAR(values[t - 1], x, 1e-12) << mode << " " << t;
    }
  }
}

TEST_P(Counter, Adagrad) {
  TrainingModel m;
  m.counter(GetParam());
  m.floats("Ha", {2}, {0, 0});
  onnx::NodeProto& adagrad = m.step("Adagrad", {"rate", "T", "a", "da", "Ha"}, {"a1", "Ha1"}, kTraining);
  setFloat(adagrad, "decay_factor", 0.5);
  setFloat(adagrad, "epsilon", 0.25);
  setFloat(adagrad, "norm_coefficient", 0.125);
  m.bind("a", "a1");
  m.bind("Ha", "Ha1");
  Imported i = import(m, withBatch(2));
  ASSERT_TRUE(i.module);
  auto values = trajectory(optimizerOf(i, "a"), 3, 4);
  double x = 3, h = 0;
  for (int t = 1; t <= 4; ++t) {
    double g = 0.125 * x + t, rate = double(0.1f) / (1 + (GetParam() + t - 1) * 0.5);
    h += g * g;
    x -= rate * g / (std::sqrt(h) + 0.25);
    EXPECT_NEAR(values[t - 1], x, 1e-12) << t;
  }
}

// A later entry sees what earlier ones assigned: the average is of the new weights.
TEST(TrainingInfo, MovingAverageInAnEntryOfItsOwn) {
  TrainingModel m;
  m.descend();
  m.nextEntry();
  *m.info().mutable_algorithm()->add_initializer() = floatTensor("keep", {}, {0.75f});
  *m.info().mutable_algorithm()->add_initializer() = floatTensor("take", {}, {0.25f});
  m.floats("a.average", {2}, {1, 2});                 // starts as a does
  m.step("Mul", {"keep", "a.average"}, {"delta.a"});  // a name that the first entry has, too
  m.step("Mul", {"take", "a"}, {"new"});
  m.step("Add", {"delta.a", "new"}, {"average.next"});
  m.bind("a.average", "average.next");
  Imported i = import(m, withBatch(2));
  ASSERT_TRUE(i.module);
  EXPECT_EQ(i.count("optimizer"), 2);
  auto op = optimizerOf(i, "a");
  ASSERT_EQ(op.getStates().size(), 1u);
  EXPECT_EQ(mlir::cast<mlir::StringAttr>(op.getStates()[0]).getValue(), "average");
  EXPECT_EQ(optimizerOf(i, "b").getStates().size(), 0u);
  auto values = trajectory(op, 1, 3), averages = trajectory(op, 1, 3, 0);
  double x = 1, average = 1;
  for (int t = 1; t <= 3; ++t) {
    x -= double(0.1f) * t;
    average = 0.75 * average + 0.25 * x;
    EXPECT_NEAR(values[t - 1], x, 1e-12);
    EXPECT_NEAR(averages[t - 1], average, 1e-12);
  }
}

TEST(TrainingInfo, NumbersThatChangeFromStepToStep) {
  TrainingModel m;
  // A rate that halves, and a count in steps of two from three.
  *m.info().mutable_algorithm()->add_initializer() = floatTensor("half", {}, {0.5f});
  m.integers("count", {}, {3});
  m.integers("two", {}, {2});
  m.step("Add", {"count", "two"}, {"count.next"});
  m.step("Mul", {"rate", "half"}, {"rate.next"});
  m.bind("count", "count.next");
  m.bind("rate", "rate.next");
  setInteger(m.step("Cast", {"count"}, {"whole"}), "to", onnx::TensorProto::FLOAT);
  m.step("Div", {"da", "whole"}, {"scaled"});
  m.step("Mul", {"rate", "scaled"}, {"delta"});
  m.step("Sub", {"a", "delta"}, {"a.next"});
  m.bind("a", "a.next");
  Imported i = import(m, withBatch(2));
  ASSERT_TRUE(i.module);
  auto values = trajectory(optimizerOf(i, "a"), 1, 4);
  double x = 1, rate = double(0.1f);
  for (int t = 1; t <= 4; ++t) {
    x -= rate * t / (3 + 2 * (t - 1));
    rate *= 0.5;
    EXPECT_NEAR(values[t - 1], x, 1e-12) << t;
  }
}

// Adam with a counter that is not one of the usual ones.
TEST(TrainingInfo, AdamFromTheMiddle) {
  TrainingModel m;
  m.counter(5);
  for (const char* name : {"Va", "Ha"}) m.floats(name, {2}, {0.5, 0.5});
  m.step("Adam", {"rate", "T", "a", "da", "Va", "Ha"}, {"a1", "Va1", "Ha1"}, kTraining);
  for (const char* name : {"a", "Va", "Ha"}) m.bind(name, std::string(name) + "1");
  Imported i = import(m, withBatch(2));
  ASSERT_TRUE(i.module);
  auto values = trajectory(optimizerOf(i, "a"), 3, 3);
  double x = 3, v = 0.5, h = 0.5, rate = double(0.1f), alpha = double(0.9f), beta = double(0.999f);
  for (int t = 1; t <= 3; ++t) {
    double T = 5 + t - 1, g = t;
    v = alpha * v + (1 - alpha) * g;
    h = beta * h + (1 - beta) * g * g;
    x -= rate * std::sqrt(1 - std::pow(beta, T)) / (1 - std::pow(alpha, T)) * v / (std::sqrt(h) + double(1e-6f));
    EXPECT_NEAR(values[t - 1], x, 1e-9) << t;
  }
}

TEST(TrainingInfo, InitializationMakesTheFirstWeights) {
  TrainingModel m;
  m.descend();
  onnx::GraphProto& graph = *m.info().mutable_initialization();
  onnx::NodeProto& normal = *graph.add_node();
  normal.set_op_type("RandomNormal");
  normal.add_output("z");
  setIntegers(normal, "shape", {2});
  setFloat(normal, "mean", 10);
  setFloat(normal, "scale", 0.5);
  setFloat(normal, "seed", 7);
  *graph.add_initializer() = floatTensor("two", {1}, {2});
  onnx::NodeProto& doubled = *graph.add_node();
  doubled.set_op_type("Mul");
  for (const char* name : {"z", "two"}) doubled.add_input(name);
  doubled.add_output("start");
  setMetadata(*m.info().mutable_initialization_binding(), "a", "start");
  Imported i = import(m, withBatch(2)), again = import(m, withBatch(2));
  ASSERT_TRUE(i.module && again.module);
  EXPECT_TRUE(i.warnings.empty());
  auto valuesOf = [](Imported& from, const char* name) {
    auto value = from.module->lookupSymbol<train::ParameterOp>(name).getValueAttr();
    return value ? train::toTensor(value)->f : std::vector<double>();
  };
  std::vector<double> start = valuesOf(i, "a");
  ASSERT_EQ(start.size(), 2u);
  EXPECT_NE(start[0], start[1]);
  for (double x : start) EXPECT_NEAR(x, 20, 6);
  EXPECT_EQ(start, valuesOf(again, "a"));
  EXPECT_TRUE(valuesOf(i, "b").empty());
}

// Many numbers of a node have its mean and deviation.
TEST(TrainingInfo, RandomNumbersHaveTheirDistribution) {
  struct Distribution {
    const char* op;
    double mean, deviation;
  };
  for (const Distribution& d :
       {Distribution{"RandomNormal", 3, 2}, Distribution{"RandomUniform", 4, 2 / std::sqrt(3.0)}}) {
    ModelBuilder m;
    m.floats("w", {100, 100}, std::vector<float>(10000));
    m.input("x", {"N", 100}).output("loss", {});
    m.node("MatMul", {"x", "w"}, {"y"});
    setInteger(m.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    auto* import = m.model.add_opset_import();
    import->set_domain(kTraining);
    import->set_version(1);
    onnx::TrainingInfoProto& info = *m.model.add_training_info();
    onnx::NodeProto& gradient = *info.mutable_algorithm()->add_node();
    gradient.set_op_type("Gradient");
    gradient.set_domain(kTraining);
    gradient.add_output("dw");
    setStrings(gradient, "xs", {"w"});
    setString(gradient, "y", "loss");
    onnx::NodeProto& sub = *info.mutable_algorithm()->add_node();
    sub.set_op_type("Sub");
    for (const char* name : {"w", "dw"}) sub.add_input(name);
    sub.add_output("w.next");
    setMetadata(*info.mutable_update_binding(), "w", "w.next");
    onnx::NodeProto& random = *info.mutable_initialization()->add_node();
    random.set_op_type(d.op);
    random.add_output("z");
    setIntegers(random, "shape", {100, 100});
    if (std::string(d.op) == "RandomNormal") {
      setFloat(random, "mean", 3);
      setFloat(random, "scale", 2);
    } else {
      setFloat(random, "low", 2);
      setFloat(random, "high", 6);
    }
    setMetadata(*info.mutable_initialization_binding(), "w", "z");
    Imported i = test::import(m, withBatch(2));
    ASSERT_TRUE(i.module);
    std::vector<double> values = train::toTensor(i.module->lookupSymbol<train::ParameterOp>("w").getValueAttr())->f;
    double mean = 0, square = 0;
    for (double x : values) mean += x / double(values.size());
    for (double x : values) square += (x - mean) * (x - mean) / double(values.size());
    EXPECT_NEAR(mean, d.mean, 0.06) << d.op;
    EXPECT_NEAR(std::sqrt(square), d.deviation, 0.05) << d.op;
  }
}

TEST(TrainingInfo, Errors) {
  auto errorOf = [](auto change) {
    TrainingModel m;
    change(m);
    Imported i = import(m, withBatch(2));
    return i.errors.empty() ? std::string() : i.errors[0];
  };
  EXPECT_THAT(errorOf([](auto& m) {}), HasSubstr("update_binding assigns none"));
  EXPECT_THAT(errorOf([](auto& m) {
                m.step("ReduceSum", {"da"}, {"a1"});
                m.bind("a", "a1");
              }),
              HasSubstr("the update of 'a': operator ReduceSum is not elementwise"));
  EXPECT_THAT(errorOf([](auto& m) {
                m.step("Sub", {"a", "db"}, {"a1"});
                m.bind("a", "a1");
              }),
              HasSubstr("uses the gradient of another parameter, 'b'"));
  EXPECT_THAT(errorOf([](auto& m) {
                m.floats("s", {2}, {0, 1});
                m.step("Sub", {"a", "s"}, {"a1"});
                m.bind("a", "a1");
                m.bind("s", "da");
              }),
              HasSubstr("starts with other values than one number or those of the parameter"));
  EXPECT_THAT(errorOf([](auto& m) {
                m.descend();
                m.nextEntry();
                onnx::NodeProto& gradient = m.step("Gradient", {"a", "x"}, {"again"}, kTraining);
                setStrings(gradient, "xs", {"a"});
                setStrings(gradient, "zs", {"x"});
                setString(gradient, "y", "loss");
              }),
              HasSubstr("differentiates at 'a.next' instead of 'a', the value at the beginning of the step"));
  EXPECT_THAT(errorOf([](auto& m) {
                m.floats("offset", {}, {0});
                m.graph().clear_node();
                m.node("Mul", {"x", "a"}, {"y"});
                m.node("Mul", {"y", "b"}, {"z"});
                m.node("Add", {"z", "offset"}, {"shifted"});
                setInteger(m.node("ReduceMean", {"shifted"}, {"loss"}), "keepdims", 0);
                m.descend();
                m.step("Add", {"offset", "rate"}, {"offset.next"});
                m.bind("offset", "offset.next");
              }),
              HasSubstr("update_binding changes 'offset', which the loss reads"));
  EXPECT_THAT(errorOf([](auto& m) {
                m.descend();
                m.floats("both", {2}, {0, 0});
                m.step("Add", {"da", "db"}, {"both.next"});
                m.bind("both", "both.next");
              }),
              HasSubstr("the update of 'both' uses several parameters"));
  EXPECT_THAT(errorOf([](auto& m) {
                m.descend();
                setMetadata(*m.info().mutable_initialization_binding(), "a", "nowhere");
              }),
              HasSubstr("the graph does not define 'nowhere'"));
  EXPECT_THAT(errorOf([](auto& m) { m.bind("a", "nowhere"); }),
              HasSubstr("'nowhere', which the training algorithm does not define"));
  EXPECT_THAT(errorOf([](auto& m) {
                m.step("Neg", {"a1"}, {"a1"});
                m.bind("a", "a1");
              }),
              HasSubstr("nested too deeply, or has a cycle"));
}

}  // namespace
}  // namespace sheaf::test
