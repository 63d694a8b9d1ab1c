// train.batch_norm, and what marks the running statistics that its moments update.
#pragma once

#include "ir/Train/TensorBuilder.h"
#include "mlir/IR/BuiltinOps.h"

#define GET_OP_CLASSES
#include "ir/Train/BatchNorm.h.inc"

namespace sheaf::train {

// A running statistic is a parameter that is not trained: the step updates it by a rule of its own,
//   new = old + (1 - momentum) (moment - old),
// in which a moment of the batch stands where other rules have the gradient. The attribute marks the `train.parameter`,
// its `train.update` and the `train.optimizer` that is the rule. What is marked stays f32, is not differentiated, not
// clipped and not part of the gradient norm, and no --optimizer replaces the rule.
inline constexpr llvm::StringLiteral kStatisticsAttr = "train.statistics";

inline bool isStatistic(mlir::Operation* op) {
  return op && op->hasAttr(kStatisticsAttr);
}

// The rule of a momentum, declared at the builder's insertion point.
OptimizerOp declareStatisticsRule(mlir::OpBuilder& builder, mlir::Location location, llvm::StringRef name,
                                  double momentum);

// What passes and the gradient rule share. A channel's numbers are kept as [C, 1]: a row each, f32 in every precision.
struct Channels {
  TensorBuilder& t;
  BatchNormOp op;

  int64_t dimension();                // that of the channels
  int64_t count();                    // channels
  double elements();                  // of one channel, on all the ranks whose rows the moments cover
  llvm::SmallVector<int64_t> axes();  // all but the channels
  // [C] or [C, 1] repeated for every element of the operand.
  mlir::Value spread(mlir::Value numbers);
  mlir::Value column(mlir::Value vector) { return t.reshape(vector, {count(), 1}); }
  mlir::Value inverseDeviation(mlir::Value variance);  // 1 / sqrt(variance + epsilon)
};

}  // namespace sheaf::train
