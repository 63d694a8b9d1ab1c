// Softmax and sigmoid among the nodes of a graph, as one operator or written out.
#pragma once

#include <optional>
#include <string>

#include "frontend/onnx/importer/Model.h"

namespace sheaf::frontend {

enum class Squashing { softmax, logSoftmax, sigmoid, logSigmoid };

// A value that is a function of logits, and the name of these.
struct Squashed {
  Squashing by;
  std::string operand;
};

// Nothing if `value` is not the result of such a function, perhaps reshaped or cast. The operand of a softmax that is
// written out as exp(x - max(x)) / sum is x.
std::optional<Squashed> squashed(const Model& model, llvm::StringRef value);

// Returns true if an op's result is exp(x) / sum(exp(x)), where a constant may be added to the sum: ops show what is
// inside functions of a graph.
bool isWrittenSoftmax(mlir::Value value);

}  // namespace sheaf::frontend
