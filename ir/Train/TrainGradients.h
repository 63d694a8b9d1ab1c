// The form of a gradient rule; private to TrainGradients*.cpp.
//
// In every rule x, y name operands, r the first result and g its gradient. Rules give the gradient of every operand
// that has one; train-differentiate uses those that are needed; the others are dead code.
#pragma once

#include "ir/Train/TensorBuilder.h"

// A rule's body sees the builder `t`, `g` and `r`, and fills `gradients`. Ops with several results have a gradient for
// the first alone; the others are statistics.
#define SHEAF_GRADIENT(OP, ...)                                                                       \
  void OP::buildGradient(OpBuilder& builder, ValueRange results, SmallVectorImpl<Value>& gradients) { \
    [[maybe_unused]] TensorBuilder t{builder, getLoc()};                                              \
    Value g = results[0];                                                                             \
    [[maybe_unused]] Value r = getOperation()->getResult(0);                                          \
    gradients.assign(getOperation()->getNumOperands(), Value());                                      \
    if (!g) return;                                                                                   \
    __VA_ARGS__                                                                                       \
  }
