// Every op: a numeric case against an independent oracle, and every differentiable op's gradient against central
// differences in f64 along random directions, or against exact values at ties.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ir/Train/Evaluator.h"
#include "ir/Train/TrainDialect.h"
#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "test/ir/OpCase.h"

using namespace sheaf::test;
using namespace sheaf::train;

namespace {

std::vector<OpCase> allCases() {
  std::vector<OpCase> all;
  for (auto part :
       {elementwiseCases(), shapeCases(), reductionCases(), selectionCases(), compositeCases(), windowedCases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

bool isTrainable(const Input& input) {
  return input.trainable;
}

std::vector<OpCase> differentiableCases() {
  std::vector<OpCase> cases;
  for (OpCase& c : allCases())
    if (std::any_of(c.inputs.begin(), c.inputs.end(), isTrainable)) cases.push_back(std::move(c));
  return cases;
}

mlir::MLIRContext& context() {
  static mlir::MLIRContext* context = [] {
    auto* made = new mlir::MLIRContext(mlir::MLIRContext::Threading::DISABLED);
    made->loadDialect<mlir::func::FuncDialect, TrainDialect>();
    return made;
  }();
  return *context;
}

// The dimensions of "tensor<2x3xf64>" as an axis list.
std::string allAxes(mlir::RankedTensorType type) {
  std::string axes;
  for (int64_t d = 0; d < type.getRank(); ++d) axes += (d ? ", " : "") + std::to_string(d);
  return axes;
}

// A step that returns %r, and whose loss is the sum of %r weighted by the last argument.
std::string stepText(const OpCase& c) {
  std::string head, arguments, reads;
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    std::string name = "a" + std::to_string(k), type = c.inputs[k].type();
    if (c.inputs[k].trainable) {
      head += "train.parameter @" + name + " : " + type + " {trainable = true}\n";
      reads += "%" + name + " = train.read @" + name + " : " + type + "\n";
    } else {
      arguments += "%" + name + ": " + type + ", ";
    }
  }
  auto type = mlir::cast<mlir::RankedTensorType>(mlir::parseType(c.result, &context()));
  std::string text =
      head + "func.func @step(" + arguments + "%w: " + c.result + ") -> " + c.result + " {\n" + reads + c.body + "\n";
  if (mlir::isa<mlir::FloatType>(type.getElementType())) {
    std::string one = "tensor<";
    for (int64_t d = 0; d < type.getRank(); ++d) one += "1x";
    one += "f64>";
    text += "%weighted = train.mul %r, %w : " + c.result + "\n%sum = train.reduce sum %weighted [" + allAxes(type) +
            "] : " + c.result + " -> " + one + "\n%loss = train.reshape %sum : " + one +
            " -> tensor<f64>\ntrain.loss %loss : tensor<f64>\n";
  }
  return text + "return %r : " + c.result + "\n}\n";
}

Tensor tensorOf(const std::string& type, const Values& values) {
  Tensor t = Tensor::zeros(mlir::cast<mlir::RankedTensorType>(mlir::parseType(type, &context())));
  for (size_t k = 0; k < values.size(); ++k) {
    if (t.isFloat())
      t.f.at(k) = values[k];
    else
      t.i.at(k) = int64_t(values[k]);
  }
  return t;
}

Values valuesOf(const Tensor& t) {
  return t.isFloat() ? t.f : Values(t.i.begin(), t.i.end());
}

// Equal up to rounding; NaN equals NaN.
void expectNear(double actual, double expected, double tolerance, const std::string& where) {
  if (std::isfinite(expected))
    EXPECT_NEAR(actual, expected, tolerance) << where;
  else
    EXPECT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected))) << actual << " at " << where;
}

class OpTest : public testing::TestWithParam<OpCase> {
 protected:
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::vector<Tensor> arguments;
  std::map<std::string, Tensor> parameters;

  void SetUp() override {
    const OpCase& c = GetParam();
    module = mlir::parseSourceString<mlir::ModuleOp>(stepText(c), &context());
    ASSERT_TRUE(module) << stepText(c);
    for (size_t k = 0; k < c.inputs.size(); ++k) {
      Tensor t = tensorOf(c.inputs[k].type(), c.inputs[k].values);
      if (c.inputs[k].trainable)
        parameters["a" + std::to_string(k)] = t;
      else
        arguments.push_back(t);
    }
    Tensor weights = Tensor::zeros(mlir::cast<mlir::RankedTensorType>(mlir::parseType(c.result, &context())));
    weights.f = c.gradients.empty() ? numbers(weights.f.size(), 77, 0.5, 1.5) : Values(weights.f.size(), 1);
    arguments.push_back(weights);
  }

  Evaluation evaluateStep(const std::map<std::string, Tensor>& at) {
    auto evaluation = evaluateFunction(module->lookupSymbol("step"), arguments, at);
    EXPECT_TRUE(mlir::succeeded(evaluation));
    return mlir::succeeded(evaluation) ? *evaluation : Evaluation();
  }

  double lossAlong(const std::map<std::string, Values>& direction, double step) {
    auto moved = parameters;
    for (auto& [name, t] : moved)
      for (size_t k = 0; k < t.f.size(); ++k) t.f[k] += step * direction.at(name)[k];
    Evaluation e = evaluateStep(moved);
    return e.loss ? e.loss->f[0] : std::nan("");
  }
};

class OpGradientTest : public OpTest {};

TEST_P(OpTest, Value) {
  const OpCase& c = GetParam();
  std::vector<Values> inputs;
  for (const Input& input : c.inputs) inputs.push_back(input.values);
  Values expected = c.oracle(inputs);
  Evaluation e = evaluateStep(parameters);
  ASSERT_EQ(e.results.size(), 1u);
  Values actual = valuesOf(e.results[0]);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t k = 0; k < expected.size(); ++k)
    expectNear(actual[k], expected[k], 1e-11 * (1 + std::fabs(expected[k])), "element " + std::to_string(k));
}

TEST_P(OpGradientTest, Gradient) {
  const OpCase& c = GetParam();
  mlir::PassManager passes(&context());
  passes.addPass(createDifferentiate());
  ASSERT_TRUE(mlir::succeeded(passes.run(*module)));
  Evaluation at = evaluateStep(parameters);
  ASSERT_TRUE(at.loss);
  EXPECT_EQ(at.gradients.size(), parameters.size());

  if (!c.gradients.empty()) {
    size_t next = 0;
    for (size_t k = 0; k < c.inputs.size(); ++k) {
      if (!c.inputs[k].trainable) continue;
      auto found = at.gradients.find("a" + std::to_string(k));
      ASSERT_NE(found, at.gradients.end()) << "no gradient of operand " << k;
      for (size_t e = 0; e < found->second.f.size(); ++e)
        expectNear(found->second.f[e], c.gradients.at(next).at(e), 1e-12,
                   "operand " + std::to_string(k) + ", element " + std::to_string(e));
      ++next;
    }
    return;
  }
  // JAX's check_grads: (L(x + h v) - L(x - h v)) / 2h = <gradient, v>, in random directions v.
  const double h = 1e-5;
  for (unsigned trial = 0; trial < 3; ++trial) {
    std::map<std::string, Values> direction;
    double expected = 0, scale = 0;
    for (auto& [name, t] : parameters) {
      direction[name] = numbers(t.f.size(), 1000 + trial * 10 + unsigned(name.back()), -1, 1);
      auto found = at.gradients.find(name);
      ASSERT_NE(found, at.gradients.end()) << "no gradient of " << name;
      for (size_t k = 0; k < t.f.size(); ++k) {
        expected += found->second.f[k] * direction[name][k];
        scale += std::fabs(found->second.f[k] * direction[name][k]);
      }
    }
    double numeric = (lossAlong(direction, h) - lossAlong(direction, -h)) / (2 * h);
    EXPECT_NEAR(numeric, expected, 1e-6 * std::fabs(expected) + 1e-7 * scale + 1e-9) << "direction " << trial;
  }
}

std::string nameOf(const testing::TestParamInfo<OpCase>& info) {
  return info.param.op + (info.param.variant.empty() ? "" : "_" + info.param.variant);
}

INSTANTIATE_TEST_SUITE_P(Train, OpTest, testing::ValuesIn(allCases()), nameOf);
INSTANTIATE_TEST_SUITE_P(Train, OpGradientTest, testing::ValuesIn(differentiableCases()), nameOf);

// An op without a case fails here.
TEST(OpCoverage, EveryOpHasACase) {
  std::set<std::string> covered, differentiated;
  for (const OpCase& c : allCases()) covered.insert("train." + c.op);
  for (const OpCase& c : differentiableCases()) differentiated.insert("train." + c.op);
  // What is not a function of operands: the frame of a step, which every case has.
  const std::set<std::string> frame{"train.parameter", "train.read",   "train.optimizer", "train.yield",
                                    "train.update",    "train.output", "train.loss",      "train.loss_scale"};
  size_t seen = 0;
  for (mlir::RegisteredOperationName name : context().getRegisteredOperations()) {
    std::string text = name.getStringRef().str();
    if (name.getDialectNamespace() != "train" || frame.count(text)) continue;
    ++seen;
    EXPECT_TRUE(covered.count(text)) << text << " has no numeric case";
    if (!name.hasInterface<Differentiable>()) continue;
    EXPECT_TRUE(differentiated.count(text)) << text << " has no gradient check";
  }
  EXPECT_GT(seen, 60u);
}

}  // namespace
