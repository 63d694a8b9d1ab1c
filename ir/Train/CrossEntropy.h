// Splits the log-sum-exp of logits into two addends, for the cross entropy and for its gradient.
#pragma once

#include "ir/Train/TensorBuilder.h"

namespace sheaf::train {

// The log-sum-exp of each row, as two addends: `first + second`. Of large logits it is the maximum and the logarithm of
// the sum, which their sum would lose; else it is their sum and 0.
struct LogSumExp {
  mlir::Value first, second;
};

inline LogSumExp logSumExp(TensorBuilder& t, mlir::Value maximum, mlir::Value logSum) {
  // Up to here the rounding of the sum changes a probability by less than 1e-5 of it.
  constexpr double kLarge = 128;
  mlir::Value sum = t.add(maximum, logSum), size = t.make<AbsOp>(sum.getType(), sum);
  mlir::Value isSmall = t.compare(ComparePredicate::lt, size, t.splatLike(sum, kLarge));
  return {t.select(isSmall, sum, maximum), t.select(isSmall, t.splatLike(sum, 0), logSum)};
}

}  // namespace sheaf::train
