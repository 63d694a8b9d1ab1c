// Data have the rows of the batch first, whichever dimension of a value holds them.
#pragma once

#include <algorithm>

#include "frontend/onnx/importer/Importer.h"

namespace sheaf::frontend {

// The shape of the data of a value with the rows in `dimension`, and the permutation that makes the value of them.
struct RowsFirst {
  Shape shape, permutation;

  RowsFirst(llvm::ArrayRef<int64_t> value, int64_t dimension) : shape(value) {
    if (shape.empty()) return;
    std::rotate(shape.begin(), shape.begin() + dimension, shape.begin() + dimension + 1);
    for (int64_t d = 0; d < int64_t(shape.size()); ++d)
      permutation.push_back(d < dimension ? d + 1 : d == dimension ? 0 : d);
  }
};

}  // namespace sheaf::frontend
