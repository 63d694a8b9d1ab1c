#include "test/frontend/DirectionalDerivative.h"

#include <cmath>
#include <random>
#include <set>

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"

namespace sheaf::test {
namespace {

using train::Evaluation;
using train::Tensor;
using Values = std::map<std::string, Tensor>;

constexpr double kJitter = 0.02, kFar = 1.5;
constexpr double kStep = 1e-5;
constexpr unsigned kDirections = 3;

}  // namespace

std::string checkDerivatives(mlir::ModuleOp module, const std::vector<Tensor>& arguments, const Values& at,
                             const std::string& fixed, bool trainedOnly) {
  auto isFixed = [&](const std::string& name) { return name.find(fixed) != std::string::npos; };
  mlir::PassManager passes(module.getContext());
  passes.addPass(train::createDifferentiate());
  if (mlir::failed(passes.run(module))) return "cannot be differentiated";
  mlir::func::FuncOp step = *module.getOps<mlir::func::FuncOp>().begin();
  std::set<std::string> frozen;
  for (auto parameter : module.getOps<train::ParameterOp>())
    if (trainedOnly && !parameter.getTrainable()) frozen.insert(parameter.getSymName().str());
  auto evaluate = [&](const Values& parameters) {
    auto result = train::evaluateFunction(step, arguments, parameters);
    return mlir::succeeded(result) ? *result : Evaluation();
  };
  // In one direction or the other, or far away: some functions have no value on one side of an element (acosh of less
  // than 1).
  Values moved;
  Evaluation found;
  for (double jitter : {kJitter, -kJitter, kFar}) {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> some(0.5, 1);
    moved = at;
    for (auto& [parameter, tensor] : moved)
      for (double& x : tensor.f) x = isFixed(parameter) || !std::isfinite(x) ? some(random) : x + jitter * some(random);
    found = evaluate(moved);
    if (found.loss && std::isfinite(found.loss->f[0])) break;
  }
  if (!found.loss || !std::isfinite(found.loss->f[0])) return "has no finite loss";
  for (unsigned trial = 0; trial < kDirections; ++trial) {
    std::mt19937 random(100 + trial);
    std::uniform_real_distribution<double> uniform(-1, 1);
    auto before = moved, after = moved;
    double expected = 0, scale = 0;
    for (auto& [parameter, tensor] : moved) {
      if (isFixed(parameter) || frozen.count(parameter)) continue;
      auto gradient = found.gradients.find(parameter);
      for (size_t i = 0; i < tensor.f.size(); ++i) {
        double v = uniform(random), g = gradient == found.gradients.end() ? 0 : gradient->second.f[i];
        before[parameter].f[i] -= kStep * v;
        after[parameter].f[i] += kStep * v;
        expected += g * v;
        scale += std::fabs(g * v);
      }
    }
    Evaluation high = evaluate(after), low = evaluate(before);
    if (!high.loss || !low.loss) return "cannot be evaluated";
    double numeric = (high.loss->f[0] - low.loss->f[0]) / (2 * kStep);
    double tolerance =
        1e-5 * std::fabs(expected) + 1e-6 * scale + 1e-9 * std::fabs(found.loss->f[0]) / kStep * 1e-5 + 1e-7;
    if (!(std::fabs(numeric - expected) <= tolerance))
      return "the derivative in a direction is " + std::to_string(numeric) + ", by the gradient " +
             std::to_string(expected);
  }
  return "";
}

}  // namespace sheaf::test
