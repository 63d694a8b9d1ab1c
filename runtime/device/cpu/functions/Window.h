// Windows of convolutions and pooling over NCHW images.
#pragma once

#include <cstdint>

#include "runtime/plan/Library.h"

namespace sheaf::cpu {

struct Window : plan::WindowShape {
  explicit Window(const plan::WindowShape& call) : plan::WindowShape(call) {}

  // The input's row and column that kernel element (i, j) sees for output pixel (y, x); they may lie in the padding.
  int64_t row(int64_t y, int64_t i) const { return y * strideH - padTop + i * dilationH; }
  int64_t column(int64_t x, int64_t j) const { return x * strideW - padLeft + j * dilationW; }
  bool inside(int64_t row, int64_t column) const { return row >= 0 && row < h && column >= 0 && column < w; }
};

}  // namespace sheaf::cpu
