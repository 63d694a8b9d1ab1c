// The step of the global batch against those of its leaves: loss and gradients, for every kind of op along every
// dimension.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "ir/Train/BatchNorm.h"
#include "ir/Train/Evaluator.h"
#include "ir/Train/Place.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "test/passes/train/PartitionKinds.h"
#include "test/passes/train/RandomOps.h"

using namespace sheaf::train;

namespace {

// Loss, and the gradient of w, of all leaves together: one thread each, which meet where values are exchanged.
std::vector<double> train(const Kind& kind, int64_t leaves) {
  mlir::MLIRContext context;
  context.loadDialect<mlir::func::FuncDialect, TrainDialect>();
  const std::string text = stepOf(kind, leaves);
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  mlir::PassManager passes(&context);
  passes.addPass(createPartition());
  passes.addPass(createDifferentiate());
  passes.addPass(createAddOptimizer());
  if (!module || mlir::failed(passes.run(*module))) {
    ADD_FAILURE() << kind.name << " is not divided among " << leaves << " leaves\n" << text;
    return {};
  }
  auto step = module->lookupSymbol<mlir::func::FuncOp>("step");
  auto typeOf = [&](unsigned i) { return mlir::cast<mlir::RankedTensorType>(step.getArgument(i).getType()); };
  Tensor w = Tensor::zeros(mlir::RankedTensorType::get({kColumns, kColumns}, mlir::Float64Type::get(&context)));
  for (size_t k = 0; k < w.f.size(); ++k) w.f[k] = std::sin(double(3 * k) + 1);

  std::vector<std::vector<double>> terms(static_cast<size_t>(leaves));
  std::vector<const Tensor*> shown(static_cast<size_t>(leaves));
  std::barrier<> barrier(leaves);
  std::vector<std::thread> threads;
  for (int64_t leaf = 0; leaf < leaves; ++leaf)
    threads.emplace_back([&, leaf] {
      const int64_t rows = kRows / leaves;
      std::vector<Tensor> arguments;
      for (unsigned i = 0; i < step.getNumArguments(); ++i) arguments.push_back(Tensor::zeros(typeOf(i)));
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = leaf * rows + r;
        for (int64_t c = 0; c < kColumns; ++c)
          arguments[0].f[size_t(r * kColumns + c)] = std::cos(double(row * kColumns + c) * 1.3);
        arguments[1].i[size_t(r)] = (row * 5) % 6;
        if (arguments.size() > 2) arguments[2].i[size_t(r)] = row;
      }
      EvaluatorOptions options;
      options.rank = leaf;
      options.ranks = leaves;
      auto exchange = [&](const Tensor& own, auto use) {
        shown[size_t(leaf)] = &own;
        barrier.arrive_and_wait();
        use();
        barrier.arrive_and_wait();
      };
      options.globalSum = [&](Tensor& t) {
        const Tensor own = t;
        exchange(own, [&] {
          for (size_t k = 0; k < t.f.size(); ++k) {
            t.f[k] = 0;
            for (const Tensor* other : shown) t.f[k] += other->f[k];
          }
        });
      };
      options.gatherRows = [&](const Tensor& own, Tensor& all) {
        exchange(own, [&] {
          all.f.clear(), all.i.clear();
          for (const Tensor* other : shown) {
            all.f.insert(all.f.end(), other->f.begin(), other->f.end());
            all.i.insert(all.i.end(), other->i.begin(), other->i.end());
          }
        });
      };
      auto result = evaluateFunction(step, arguments, {{"w", w}}, options);
      ASSERT_TRUE(mlir::succeeded(result)) << kind.name;
      terms[size_t(leaf)].push_back(result->loss->f[0]);
      for (double element : result->gradients.at("w").f) terms[size_t(leaf)].push_back(element);
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<double> sum = terms[0];
  for (size_t leaf = 1; leaf < terms.size(); ++leaf)
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += terms[leaf][k];
  return sum;
}

class Kinds : public testing::TestWithParam<Kind> {};

TEST_P(Kinds, LeavesComputeLossAndGradientOfTheBatch) {
  const std::vector<double> whole = train(GetParam(), 1);
  ASSERT_EQ(whole.size(), 37u);
  for (int64_t leaves : {2, 4, 8}) {
    const std::vector<double> found = train(GetParam(), leaves);
    ASSERT_EQ(found.size(), whole.size());
    for (size_t k = 0; k < whole.size(); ++k)
      EXPECT_NEAR(found[k], whole[k], 1e-11 * (1 + std::abs(whole[k]))) << leaves << " leaves, number " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Partition, Kinds, testing::ValuesIn(kKinds), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// The kinds whose rows need other rows, and the elements of the values that each gathers on four leaves. One or two
// values of the batch's rows are what their results depend on.
TEST(Gathers, AreOfWhatNeedsOtherRows) {
  std::map<std::string, std::vector<int64_t>> found;
  for (const Kind& kind : kKinds) {
    mlir::MLIRContext context;
    context.loadDialect<TrainDialect, mlir::func::FuncDialect>();
    mlir::OwningOpRef<mlir::ModuleOp> module = mlir::parseSourceString<mlir::ModuleOp>(stepOf(kind, 4), &context);
    mlir::PassManager passes(&context);
    passes.addPass(createPartition());
    ASSERT_TRUE(module && mlir::succeeded(passes.run(*module))) << kind.name;
    module->walk([&](GatherRowsOp op) {
      found[kind.name].push_back(mlir::cast<mlir::RankedTensorType>(op.getType()).getNumElements());
    });
  }
  const std::map<std::string, std::vector<int64_t>> expected{
      {"attention-over-batch", {48, 48}},
      {"batch-in-inner-dimension", {48}},
      {"convolution-over-batch", {48}},
      {"cumsum-batch", {48}},
      {"filters-of-rows", {48}},
      {"gather-batch", {48}},
      {"gather-elements-batch", {48}},
      {"gather-own-labels", {48}},
      {"gather-permutation", {48}},
      {"groups-of-4", {48}},
      {"layer-norm-batch", {48}},
      {"log-softmax-batch", {48}},
      {"matmul-each-other", {48}},
      {"max-batch", {48}},
      {"max-to-scalar", {48}},
      {"min-all", {48}},
      {"other-dimension", {48}},
      {"pad-batch", {48}},
      {"product-batch", {48}},
      {"reverse-batch", {48}},
      {"scatter-replace-batch", {48}},
      {"slice-backwards", {48}},
      {"slice-batch", {48}},
      {"slice-half", {48}},
      {"softmax-batch", {48}},
      {"square-input-of-rows", {48, 48}},
      {"top-k-batch", {48}},
      {"views-apart", {96}},
      {"views-with-each-other", {96}},
  };
  EXPECT_EQ(found, expected);
}

TEST(RandomSteps, AreTheSameOnAnyNumberOfLeaves) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const auto [ops, shape] = RandomOps(seed).write();
    const Kind kind{"random", ops.c_str(), shape.c_str()};
    const std::vector<double> whole = train(kind, 1);
    for (int64_t leaves : {2, 4, 8}) {
      const std::vector<double> found = train(kind, leaves);
      ASSERT_EQ(found.size(), whole.size());
      for (size_t k = 0; k < whole.size(); ++k)
        ASSERT_NEAR(found[k], whole[k], 1e-10 * (1 + std::abs(whole[k])))
            << "seed " << seed << ", " << leaves << " leaves, number " << k << "\n"
            << ops;
    }
  }
}

// Elements of a leaf's part, by their places in the whole value.
std::vector<int64_t> elementsOf(llvm::ArrayRef<int64_t> shape, Place place, int64_t parts, int64_t part) {
  int64_t inner = 1, count = 1;
  for (int64_t n : shape) count *= n;
  for (int64_t n : shape.drop_front(size_t(place.dimension) + 1)) inner *= n;
  std::vector<int64_t> found;
  for (int64_t e = 0; e < count; ++e)
    if (e / inner / place.run % parts == part) found.push_back(e);
  return found;
}

TEST(ReshapedPlace, MatchesBruteForce) {
  std::mt19937_64 random(7);
  auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  int64_t kept = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::vector<int64_t> from, to;
    int64_t count = 1;
    for (int64_t d = 1 + below(3); d > 0; --d) from.push_back(1 + below(8)), count *= from.back();
    for (int64_t left = count; left > 1 || to.empty();) {
      int64_t n = 1 + below(left);
      while (left % n) --n;
      to.push_back(n), left /= n;
    }
    const int64_t parts = int64_t(2) << below(2);
    const Place place{below(int64_t(from.size())), 0};
    const int64_t size = from[size_t(place.dimension)];
    if (size % parts) continue;
    std::vector<int64_t> divisors;
    for (int64_t own = 1; own <= size / parts; ++own)
      if (size % (own * parts) == 0) divisors.push_back(own);
    const Place at{place.dimension, divisors[size_t(below(int64_t(divisors.size())))]};
    std::vector<Place> possible;
    for (int64_t d = 0; d < int64_t(to.size()); ++d)
      for (int64_t own = 1; own * parts <= to[size_t(d)]; ++own)
        if (to[size_t(d)] % (own * parts) == 0 && elementsOf(to, {d, own}, parts, 1) == elementsOf(from, at, parts, 1))
          possible.push_back({d, own});
    const auto found = reshapedPlace(from, to, at, parts);
    ASSERT_LE(possible.size(), 1u);
    ASSERT_EQ(found.has_value(), !possible.empty());
    if (found) {
      EXPECT_EQ(*found, possible.front());
      ++kept;
    }
  }
  EXPECT_GT(kept, 1'000);
}

}  // namespace
