// Random training steps of attention and matrix products whose operands and results are views: interleaved, permuted,
// broadcast, grouped, sliced, strided, reversed, padded and joined.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "ir/Train/Evaluator.h"
#include "ir/Train/TensorBuilder.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace sheaf::test {

using Shape = llvm::SmallVector<int64_t>;

// A module as the importer makes it, for one rank: parameters p0, p1, ... with values, inputs x0, x1, ... of `kRows`
// rows, and a loss. The same seed makes the same step.
class RandomStep {
 public:
  static constexpr int64_t kRows = 2;

  RandomStep(mlir::MLIRContext& context, unsigned seed);

  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::vector<train::Tensor> inputs;
  std::map<std::string, train::Tensor> parameters;

 private:
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); }
  bool chance(double probability) { return std::uniform_real_distribution<>(0, 1)(random) < probability; }
  int64_t of(llvm::ArrayRef<int64_t> choices) { return choices[below(int64_t(choices.size()))]; }
  train::Tensor numbers(mlir::RankedTensorType type, double scale);
  mlir::RankedTensorType f32(llvm::ArrayRef<int64_t> shape);

  // Values without operands.
  mlir::Value parameter(llvm::ArrayRef<int64_t> shape);
  mlir::Value input(llvm::ArrayRef<int64_t> shape);
  mlir::Value constant(llvm::ArrayRef<int64_t> shape);

  // A value of this shape: a view of another one, or computed from others, up to `depth` ops away from the leaves.
  mlir::Value make(llvm::ArrayRef<int64_t> shape, int depth);
  mlir::Value computed(llvm::ArrayRef<int64_t> shape, int depth);
  mlir::Value product(llvm::ArrayRef<int64_t> shape, int depth);
  // A few random views and elementwise ops on a value.
  mlir::Value disguise(mlir::Value value, int count);
  Shape regrouped(llvm::ArrayRef<int64_t> shape);
  Shape shuffledAxes(int64_t rank);
  mlir::Value slice(mlir::Value value, int64_t axis, int64_t start, int64_t size, int64_t step = 1);
  // Query [B, S, H, D], key [B, T, G, D] and value [B, T, G, E], each apart or all in one of the layouts that models
  // have.
  struct Sizes {
    int64_t b, s, t, h, g, d, e;
  };
  std::array<mlir::Value, 3> projections(const Sizes& z);
  mlir::Value attention();                                                                     // train.attention
  mlir::Value written(const Sizes& z, mlir::Value query, mlir::Value key, mlir::Value value);  // as exporters write it
  void removeUnused();

  std::mt19937 random;
  mlir::OpBuilder builder;
  train::TensorBuilder b;
  mlir::func::FuncOp step;
};

}  // namespace sheaf::test
