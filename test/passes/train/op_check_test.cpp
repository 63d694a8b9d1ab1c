// Wrong claims are refused: for every kind of op each claim is exchanged for every other one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "test/passes/train/PartitionKinds.h"
#include "test/passes/train/RandomOps.h"

using namespace sheaf::train;

namespace {

struct Outcome {
  bool passed = false;
  std::string fault, error;  // empty: there was none
};

Outcome run(mlir::ModuleOp given, std::unique_ptr<mlir::Pass> pass) {
  Outcome outcome;
  mlir::OwningOpRef<mlir::ModuleOp> module = given.clone();
  mlir::ScopedDiagnosticHandler handler(given.getContext(), [&](mlir::Diagnostic& diagnostic) {
    (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Remark ? outcome.fault : outcome.error) = diagnostic.str();
    return mlir::success();
  });
  mlir::PassManager passes(given.getContext());
  passes.addPass(std::move(pass));
  outcome.passed = mlir::succeeded(passes.run(*module));
  return outcome;
}

// A sum has the same terms wherever the parts are along what it sums; what is repeated is the same in all places; of
// the operand of random numbers only the shape counts; and a guard of a constant that is not zero ignores its
// operand 1.
bool isEqual(const std::string& fault) {
  static const std::regex moved(
      "fault: train\\.(.*) as its part along dimension (\\d+), in runs of \\d+, not its part along dimension \\2, in "
      "runs "
      "of \\d+; (operand 0 is .*)");
  std::smatch parts;
  if (!std::regex_match(fault, parts, moved)) return false;
  const std::string value = parts[1], claims = parts[3];
  return value == "random_uniform: operand 0" || value == "guard: operand 1" ||
         (value == "reduce: operand 0" && claims.ends_with("result 0 a term of it")) ||
         (value == "broadcast: result 0" && claims.starts_with("operand 0 is all of it"));
}

// Makes the faults of a pass one after the other. Their kinds, without sizes, are added to `kinds`.
template <typename Options, typename Create>
void expectRefused(mlir::ModuleOp module, const Kind& kind, Create create, std::set<std::string>& kinds) {
  for (int64_t fault = 0;; ++fault) {
    Options options;
    options.fault = fault;
    const Outcome outcome = run(module, create(options));
    if (outcome.fault.empty()) {
      EXPECT_TRUE(outcome.passed) << kind.name << ": " << outcome.error;
      return;
    }
    EXPECT_FALSE(outcome.passed && !isEqual(outcome.fault)) << kind.name << ", " << outcome.fault;
    if (outcome.passed) continue;
    EXPECT_THAT(outcome.error, testing::HasSubstr("is not divided rightly among"));
    kinds.insert(std::regex_replace(outcome.fault, std::regex("; .*|, in runs of \\d+| along dimension \\d+"), ""));
  }
}

// Calls f(module, kind) with the step of each kind on 4 leaves.
template <typename F>
void forKinds(F f) {
  for (const Kind& kind : kKinds) {
    mlir::MLIRContext context;
    context.loadDialect<TrainDialect, mlir::func::FuncDialect>();
    auto module = mlir::parseSourceString<mlir::ModuleOp>(stepOf(kind, 4), &context);
    ASSERT_TRUE(module);
    f(*module, kind);
  }
}

TEST(OpCheck, RefusesWrongClaimsOfThePartition) {
  std::set<std::string> kinds;
  forKinds([&](mlir::ModuleOp module, const Kind& kind) {
    expectRefused<PartitionOptions>(
        module, kind, [](auto& o) { return createPartition(o); }, kinds);
  });
  EXPECT_GE(kinds.size(), 60u);
}

// The backward pass is widened, too.
TEST(OpCheck, RefusesWrongClaimsOfTheLeaves) {
  std::set<std::string> kinds;
  forKinds([&](mlir::ModuleOp module, const Kind& kind) {
    mlir::PassManager passes(module.getContext());
    passes.addPass(createPartition());
    passes.addPass(createDifferentiate());
    passes.addPass(createAddOptimizer());
    passes.addPass(createDecompose());
    passes.addPass(createAssignFusions());
    ASSERT_TRUE(mlir::succeeded(passes.run(module))) << kind.name;
    mlir::Builder builder(module.getContext());
    module->setAttr("train.widen_to", builder.getI64IntegerAttr(2));
    module->setAttr("train.batch", builder.getI64IntegerAttr(8));
    expectRefused<WidenLeavesOptions>(
        module, kind, [](auto& o) { return createWidenLeaves(o); }, kinds);
  });
  EXPECT_GE(kinds.size(), 60u);
}

}  // namespace
