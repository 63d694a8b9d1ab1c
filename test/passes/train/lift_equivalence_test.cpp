// What the lifting passes make of the modules of their lit tests computes what these computed before, by the reference
// evaluator in f64. The passes read constants to within the digits that exporters write, so there is a tolerance.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "ir/Train/Evaluator.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "test/Paths.h"

namespace {

using namespace mlir;
using namespace sheaf::train;

constexpr double kTolerance = 2e-4;

// Values that every operator in the tests is defined on: labels are columns. Every second row of a mask hides all keys,
// and the first row hides the first one.
Tensor someValues(RankedTensorType type, std::mt19937& random) {
  Tensor tensor = Tensor::zeros(type);
  for (double& x : tensor.f) x = std::uniform_real_distribution(-1.0, 1.0)(random);
  const size_t columns = type.getRank() ? type.getShape().back() : 1;
  for (size_t i = 0; i < tensor.i.size(); ++i) {
    const size_t row = i / columns, column = i % columns;
    tensor.i[i] = type.getElementType().isInteger(1) ? row % 2 == 0 && column % 3 != row % 3 : i % 3;
  }
  return tensor;
}

std::vector<std::string> modulesOf(const std::string& name) {
  std::ifstream file(std::string(sheaf::paths::kLitTests) + "/" + name + ".mlir");
  std::vector<std::string> modules(1);
  for (std::string line; std::getline(file, line);)
    if (line == "// -----")
      modules.emplace_back();
    else
      modules.back() += line + "\n";
  return modules;
}

class LiftEquivalenceTest : public testing::TestWithParam<std::string> {};

TEST_P(LiftEquivalenceTest, ValuesStay) {
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<TrainDialect, func::FuncDialect>();
  for (const std::string& text : modulesOf(GetParam())) {
    auto module = parseSourceString<ModuleOp>(text, &context);
    ASSERT_TRUE(module) << text;
    std::mt19937 random(1);
    std::map<std::string, Tensor> parameters;
    for (auto parameter : module->getOps<ParameterOp>())
      parameters[parameter.getSymName().str()] = someValues(cast<RankedTensorType>(parameter.getType()), random);
    auto function = *module->getOps<func::FuncOp>().begin();
    std::vector<Tensor> arguments;
    for (Type type : function.getArgumentTypes()) arguments.push_back(someValues(cast<RankedTensorType>(type), random));

    auto before = evaluateFunction(function, arguments, parameters);
    PassManager passes(&context);
    passes.addPass(createLiftNormalization());
    passes.addPass(createLiftGelu());
    passes.addPass(createLiftAttention());
    passes.addPass(createLiftCrossEntropy());
    ASSERT_TRUE(succeeded(passes.run(*module)));
    auto after = evaluateFunction(function, arguments, parameters);
    ASSERT_TRUE(succeeded(before) && succeeded(after)) << function.getSymName().str();
    for (auto [old, now] : llvm::zip_equal(before->results, after->results))
      for (size_t i = 0; i < old.f.size(); ++i) {
        // A softmax of minus infinity alone is not a number, and an attention 0.
        if (std::isnan(old.f[i])) continue;
        ASSERT_NEAR(old.f[i], now.f[i], kTolerance * (1 + std::abs(old.f[i])))
            << function.getSymName().str() << ", element " << i;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, LiftEquivalenceTest,
                         testing::Values("lift-normalization", "lift-gelu", "lift-attention", "lift-cross-entropy"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
