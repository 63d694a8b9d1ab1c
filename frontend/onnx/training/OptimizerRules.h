// Adagrad, Adam and Momentum of ai.onnx.preview.training 1, by their specification: of their nodes in a graph, and of
// the updates of a training algorithm.
#pragma once

#include <functional>

#include "frontend/onnx/importer/Importer.h"

namespace sheaf::frontend {

inline constexpr llvm::StringLiteral kTrainingDomain = "ai.onnx.preview.training";

// What an optimizer's node has for each variable.
struct OptimizerInputs {
  Tensor rate, x, gradient;
  llvm::SmallVector<Tensor, 2> states;
};

// How the update's counter T is known.
struct Counter {
  std::function<Tensor()> value;                                                    // as f32
  std::function<Tensor(const Tensor& then, const Tensor& otherwise)> whenPositive;  // T > 0 ? then : otherwise
  std::function<Tensor(double rate, bool root)> correction;                         // 1 - rate^T, or its square root
};

// States of each variable: 1 or 2; 0 if it is not such an operator.
int optimizerStates(llvm::StringRef op);
// The number of variables; 0 if the node has the wrong number of inputs or outputs.
int optimizerVariables(const onnx::NodeProto& node);
// The variable's next value, then those of its states; empty after an error.
llvm::SmallVector<Tensor> optimizerStep(Emitter& emit, const onnx::NodeProto& node, const OptimizerInputs& inputs,
                                        const Counter& counter);

}  // namespace sheaf::frontend
