// PyTorch's rules for the gradient of an embedding.
#pragma once

#include "frontend/onnx/importer/Importer.h"

namespace sheaf::frontend {

// Returns booleans of `shape`, whose last dimension is that of the table: true in the rows of indices that are
// `padding`, which is not negative.
Tensor isPadding(Emitter& e, const Tensor& indices, int64_t padding, llvm::ArrayRef<int64_t> shape);

// Stops the gradient of rows looked up at the padding index. A negative index is none.
Tensor stopPaddingGradient(Emitter& e, const Tensor& rows, const Tensor& indices, int64_t padding);

// Warns once that scale_grad_by_freq has no effect.
void warnOfFrequency(Importer& importer);

}  // namespace sheaf::frontend
