// Whole passes against what they must mean: optimizers against PyTorch's formulas, and N ranks against one.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <thread>

#include "ir/Train/Evaluator.h"
#include "ir/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "runtime/plan/Words.h"

using namespace sheaf::train;

namespace {

struct Setup {
  mlir::MLIRContext context;  // Threads share it: ranks are evaluated side by side.
  mlir::OwningOpRef<mlir::ModuleOp> module;

  Setup(const std::string& text, llvm::ArrayRef<std::unique_ptr<mlir::Pass> (*)()> passes,
        const AddOptimizerOptions& optimizer = {}) {
    context.loadDialect<mlir::func::FuncDialect, TrainDialect>();
    module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
    mlir::PassManager manager(&context);
    for (auto create : passes) manager.addPass(create());
    manager.addPass(createAddOptimizer(optimizer));
    EXPECT_TRUE(module && mlir::succeeded(manager.run(*module)));
  }
};

// --- optimizers ---

// The plan has a word for every kind but those that the gradient norm decides on the device; lowering goes by words.
TEST(ScalarKind, HasItsWordInThePlan) {
  for (uint32_t i = 1; i <= getMaxEnumValForScalarKind(); ++i) {
    const ScalarKind kind = *symbolizeScalarKind(i);
    const bool onDevice = kind == ScalarKind::clip_scale || kind == ScalarKind::finite;
    EXPECT_EQ(sheaf::plan::valueOf<sheaf::plan::StepScalar::Kind>(stringifyScalarKind(kind)).has_value(), !onDevice)
        << stringifyScalarKind(kind).str();
  }
}

// What the runtime computes for a step's scalars.
double scalarValue(ScalarAttr scalar, double lr, double t) {
  const double v = scalar.getValue().getValueAsDouble();
  switch (scalar.getKind()) {
    case ScalarKind::constant:
      return v;
    case ScalarKind::lr_times:
      return lr * v;
    case ScalarKind::one_minus_lr_times:
      return 1 - lr * v;
    case ScalarKind::lr_over_bias_correction:
      return lr / (1 - std::pow(v, t));
    case ScalarKind::sqrt_bias_correction:
      return std::sqrt(1 - std::pow(v, t));
    case ScalarKind::first_step:
      return t == 1;
    case ScalarKind::clip_scale:
      return 0.5;
    case ScalarKind::finite:
      return t != 3;  // The third step's gradient is not.
    default:
      ADD_FAILURE() << "not of torch's optimizers: " << stringifyScalarKind(scalar.getKind()).str();
      return 0;
  }
}

// Parameter values after each of five steps with gradients that depend on the parameter.
std::vector<double> trajectory(const AddOptimizerOptions& options) {
  Setup setup(
      "train.parameter @p : tensor<1xf32> {trainable = true}\n"
      "func.func @step(%g: tensor<1xf32>) {\ntrain.update @p by @optimizer, %g : tensor<1xf32>\nreturn\n}",
      {}, options);
  auto op = setup.module->lookupSymbol<OptimizerOp>("optimizer");
  double lr = (*setup.module)->getAttrOfType<mlir::FloatAttr>("train.lr").getValueAsDouble();
  auto type = mlir::RankedTensorType::get({}, mlir::Float32Type::get(&setup.context));
  std::vector<double> state(1 + op.getStates().size(), 0), out;
  state[0] = 0.7;
  for (int t = 1; t <= 5; ++t) {
    std::vector<double> values{state[0], std::sin(3 * state[0]) + 0.1 * t};
    values.insert(values.end(), state.begin() + 1, state.end());
    for (mlir::Attribute s : op.getScalars()) values.push_back(scalarValue(mlir::cast<ScalarAttr>(s), lr, t));
    std::vector<Tensor> arguments;
    for (double v : values) arguments.push_back({type, {v}, {}});
    auto result = evaluateRegion(op.getBody(), arguments);
    EXPECT_TRUE(mlir::succeeded(result));
    for (size_t k = 0; k < state.size(); ++k) state[k] = result->results[k].f[0];
    out.push_back(state[0]);
  }
  return out;
}

// torch.optim.SGD's algorithm as its documentation states it.
std::vector<double> sgd(double lr, double momentum, double dampening, double decay, bool nesterov) {
  double p = 0.7, buffer = 0;
  std::vector<double> out;
  for (int t = 1; t <= 5; ++t) {
    double g = std::sin(3 * p) + 0.1 * t + decay * p;
    if (momentum != 0) {
      buffer = t == 1 ? g : momentum * buffer + (1 - dampening) * g;
      g = nesterov ? g + momentum * buffer : buffer;
    }
    p -= lr * g;
    out.push_back(p);
  }
  return out;
}

// torch.optim.Adam's and AdamW's. A step with a scaled gradient, and one that is skipped, for the guards.
std::vector<double> adam(double lr, double beta1, double beta2, double eps, double decay, bool decoupled,
                         double scale = 1, int skipped = 0) {
  double p = 0.7, m = 0, v = 0;
  std::vector<double> out;
  for (int t = 1; t <= 5; ++t) {
    double g = (std::sin(3 * p) + 0.1 * t) * scale;
    if (t != skipped) {
      if (decoupled)
        p -= lr * decay * p;
      else
        g += decay * p;
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * g * g;
      double mean = m / (1 - std::pow(beta1, t)), variance = v / (1 - std::pow(beta2, t));
      p -= lr * mean / (std::sqrt(variance) + eps);
    }
    out.push_back(p);
  }
  return out;
}

// Lion's, algorithm 2 of its paper.
std::vector<double> lion(double lr, double beta1, double beta2, double decay) {
  double p = 0.7, m = 0;
  std::vector<double> out;
  for (int t = 1; t <= 5; ++t) {
    const double g = std::sin(3 * p) + 0.1 * t, c = beta1 * m + (1 - beta1) * g;
    p -= lr * ((c > 0) - (c < 0) + decay * p);
    m = beta2 * m + (1 - beta2) * g;
    out.push_back(p);
  }
  return out;
}

void expectTrajectory(const std::string& optimizer, const std::vector<double>& expected, bool clip = false,
                      bool skip = false) {
  AddOptimizerOptions options;
  options.optimizer = optimizer;
  options.clip = clip;
  options.skip = skip;
  std::vector<double> actual = trajectory(options);
  for (size_t k = 0; k < expected.size(); ++k)
    EXPECT_NEAR(actual[k], expected[k], 1e-12) << optimizer << ", step " << k + 1;
}

TEST(Optimizers, MatchTheirFormulas) {
  expectTrajectory("sgd", sgd(1e-3, 0, 0, 0, false));
  expectTrajectory("sgd:lr=0.1,momentum=0.9", sgd(0.1, 0.9, 0, 0, false));
  expectTrajectory("sgd:lr=0.1,momentum=0.9,dampening=0.3,weight_decay=0.2", sgd(0.1, 0.9, 0.3, 0.2, false));
  expectTrajectory("sgd:lr=0.1,momentum=0.9,nesterov=true,weight_decay=0.2", sgd(0.1, 0.9, 0, 0.2, true));
  expectTrajectory("adam", adam(1e-3, 0.9, 0.999, 1e-8, 0, false));
  expectTrajectory("adam:lr=0.1,beta1=0.8,beta2=0.9,eps=0.01,weight_decay=0.3", adam(0.1, 0.8, 0.9, 0.01, 0.3, false));
  expectTrajectory("adamw", adam(1e-3, 0.9, 0.999, 1e-8, 1e-2, true));
  expectTrajectory("", adam(1e-3, 0.9, 0.999, 1e-8, 1e-2, true));
  expectTrajectory("adamw:lr=0.1,weight_decay=0.3", adam(0.1, 0.9, 0.999, 1e-8, 0.3, true));
  expectTrajectory("lion", lion(1e-4, 0.9, 0.99, 0));
  // Large steps change the gradient's sign: the momentum and its two averages decide.
  expectTrajectory("lion:lr=0.9,beta1=0.6,beta2=0.8,weight_decay=0.1", lion(0.9, 0.6, 0.8, 0.1));
}

TEST(Optimizers, ClipScalesTheGradientAndSkipKeepsTheState) {
  expectTrajectory("adamw:lr=0.1", adam(0.1, 0.9, 0.999, 1e-8, 1e-2, true, 0.5), true);
  expectTrajectory("adamw:lr=0.1", adam(0.1, 0.9, 0.999, 1e-8, 1e-2, true, 1, 3), false, true);
  expectTrajectory("adamw:lr=0.1", adam(0.1, 0.9, 0.999, 1e-8, 1e-2, true, 0.5, 3), true, true);
}

// --- ranks ---

// A classifier with ignored labels, batch statistics (written out, and as batch norm with running statistics) and a
// penalty on its weights: local terms, global counts, values that are the same everywhere.
std::string model(int64_t rows, int64_t ranks) {
  std::string text = R"(
module attributes {train.ranks = RANKS : i64} {
  train.parameter @w : tensor<3x4xf64> {trainable = true}
  train.parameter @scale : tensor<4xf64> {trainable = true}
  train.parameter @bias : tensor<4xf64> {trainable = true}
  train.parameter @mean : tensor<4xf64> {trainable = false, train.statistics}
  train.parameter @variance : tensor<4xf64> {trainable = false, train.statistics}
  train.optimizer @statistics states [] scalars [] attributes {train.statistics} {
  ^bb0(%p: tensor<f32>, %g: tensor<f32>):
    train.yield %p : tensor<f32>
  }
  func.func @step(%x: tensor<Rx3xf64>, %y: tensor<Rx1xi64>) {
    %w = train.read @w : tensor<3x4xf64>
    %z = train.matmul %x, %w : tensor<Rx3xf64>, tensor<3x4xf64> -> tensor<Rx4xf64>
    // Batch norm: the mean over the batch is a term, and subtracting it needs the whole.
    %mean = train.reduce mean %z [0] : tensor<Rx4xf64> -> tensor<1x4xf64>
    %means = train.broadcast %mean : tensor<1x4xf64> -> tensor<Rx4xf64>
    %centred = train.sub %z, %means : tensor<Rx4xf64>
    %square = train.mul %centred, %centred : tensor<Rx4xf64>
    %variance = train.reduce mean %square [0] : tensor<Rx4xf64> -> tensor<1x4xf64>
    %eps = train.constant dense<1.0e-2> : tensor<1x4xf64>
    %shifted = train.add %variance, %eps : tensor<1x4xf64>
    %rstd = train.rsqrt %shifted : tensor<1x4xf64>
    %rstds = train.broadcast %rstd : tensor<1x4xf64> -> tensor<Rx4xf64>
    %normal = train.mul %centred, %rstds : tensor<Rx4xf64>
    %mixed = train.add %normal, %z : tensor<Rx4xf64>
    %scale = train.read @scale : tensor<4xf64>
    %bias = train.read @bias : tensor<4xf64>
    %logits, %m, %v = train.batch_norm %mixed, %scale, %bias epsilon 1.0e-2
      : (tensor<Rx4xf64>, tensor<4xf64>, tensor<4xf64>) -> (tensor<Rx4xf64>, tensor<4xf64>, tensor<4xf64>)
    train.update @mean by @statistics, %m {train.statistics} : tensor<4xf64>
    train.update @variance by @statistics, %v {train.statistics} : tensor<4xf64>
    // The mean over the labels that count divides by their number in the whole batch.
    %ce, %lse = train.cross_entropy %logits, %y {ignore_index = -100 : i64}
      : (tensor<Rx4xf64>, tensor<Rx1xi64>) -> (tensor<Rx1xf64>, tensor<Rx1xf64>)
    %ignored = train.constant dense<-100> : tensor<Rx1xi64>
    %valid = train.compare ne %y, %ignored : tensor<Rx1xi64>
    %ones = train.cast %valid : tensor<Rx1xi1> -> tensor<Rx1xf64>
    %sum = train.reduce sum %ce [0] : tensor<Rx1xf64> -> tensor<1x1xf64>
    %count = train.reduce sum %ones [0] : tensor<Rx1xf64> -> tensor<1x1xf64>
    %nll = train.div %sum, %count : tensor<1x1xf64>
    // A penalty is the same on all ranks.
    %ww = train.mul %w, %w : tensor<3x4xf64>
    %penalty = train.reduce sum %ww [0, 1] : tensor<3x4xf64> -> tensor<1x1xf64>
    %total = train.add %nll, %penalty : tensor<1x1xf64>
    %loss = train.reshape %total : tensor<1x1xf64> -> tensor<f64>
    train.loss %loss : tensor<f64>
    return
  }
})";
  for (auto [from, to] :
       {std::pair{std::string("RANKS"), std::to_string(ranks)}, {"<Rx", "<" + std::to_string(rows) + "x"}})
    for (size_t at; (at = text.find(from)) != std::string::npos;) text.replace(at, from.size(), to);
  return text;
}

struct Share {
  double loss;
  std::vector<double> gradient;  // of all parameters; of running statistics, the moments
};

// All ranks in lockstep, one thread each: a global sum waits for all and adds in rank order.
std::vector<Share> runRanks(int64_t ranks, int64_t globalRows, bool decomposed) {
  int64_t rows = globalRows / ranks;
  llvm::SmallVector<std::unique_ptr<mlir::Pass> (*)()> passes{createPartition, createDifferentiate};
  if (decomposed) passes.push_back(createDecompose);
  Setup setup(model(globalRows, ranks), passes);
  auto step = setup.module->lookupSymbol<mlir::func::FuncOp>("step");
  auto xType = mlir::cast<mlir::RankedTensorType>(step.getArgument(0).getType());
  auto yType = mlir::cast<mlir::RankedTensorType>(step.getArgument(1).getType());
  Tensor w = Tensor::zeros(mlir::RankedTensorType::get({3, 4}, mlir::Float64Type::get(&setup.context)));
  for (size_t k = 0; k < w.f.size(); ++k) w.f[k] = std::sin(double(k) + 1);
  Tensor scale = Tensor::zeros(mlir::RankedTensorType::get({4}, mlir::Float64Type::get(&setup.context))), bias = scale;
  scale.f = {1, 0.5, 2, -1};
  bias.f = {0, 1, -0.5, 0.25};

  std::vector<Share> shares(ranks);
  std::vector<const Tensor*> terms(ranks);
  std::barrier<> barrier(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Tensor x = Tensor::zeros(xType), y = Tensor::zeros(yType);
      for (int64_t r = 0; r < rows; ++r) {
        int64_t row = rank * rows + r;
        for (int64_t c = 0; c < 3; ++c) x.f[r * 3 + c] = std::cos(double(row * 3 + c));
        y.i[r] = row % 3 == 1 || row == 0 ? -100 : row % 4;
      }
      EvaluatorOptions options;
      options.rank = rank;
      options.globalSum = [&](Tensor& t) {
        Tensor mine = t;
        terms[rank] = &mine;
        barrier.arrive_and_wait();
        for (size_t k = 0; k < t.f.size(); ++k) {
          t.f[k] = 0;
          for (const Tensor* other : terms) t.f[k] += other->f[k];
        }
        barrier.arrive_and_wait();
      };
      auto result = evaluateFunction(step, {x, y}, {{"w", w}, {"scale", scale}, {"bias", bias}}, options);
      shares[rank].loss = result->loss->f[0];
      for (const char* name : {"w", "scale", "bias", "mean", "variance"})
        for (double element : result->gradients.at(name).f) shares[rank].gradient.push_back(element);
    });
  for (std::thread& thread : threads) thread.join();
  return shares;
}

TEST(Partition, LeavesComputeTheGradientOfTheGlobalBatch) {
  Share whole = runRanks(1, 12, false).front();
  const size_t count = whole.gradient.size();
  ASSERT_EQ(count, 28u);
  for (auto [ranks, decomposed] : {std::pair(1, true), {2, false}, {4, true}, {12, false}, {12, true}}) {
    double loss = 0;
    std::vector<double> gradient(count, 0);
    for (const Share& share : runRanks(ranks, 12, decomposed)) {
      loss += share.loss;
      for (size_t k = 0; k < count; ++k) gradient[k] += share.gradient[k];
    }
    EXPECT_NEAR(loss, whole.loss, 1e-12) << ranks << " ranks";
    for (size_t k = 0; k < count; ++k)
      EXPECT_NEAR(gradient[k], whole.gradient[k], 1e-12) << ranks << " ranks, element " << k;
  }
}

}  // namespace
