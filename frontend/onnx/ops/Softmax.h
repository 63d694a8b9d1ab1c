// Softmax among the nodes of a graph, as one operator or written out.
#pragma once

#include <optional>
#include <string>

#include "frontend/onnx/importer/Model.h"

namespace sheaf::frontend {

// The name of the value that a softmax is computed from, if `value` is the result of one, perhaps reshaped or cast.
// Written out as exp(x - max(x)) / sum, that value is x.
std::optional<std::string> softmaxOperand(const Model& model, llvm::StringRef value);

}  // namespace sheaf::frontend
