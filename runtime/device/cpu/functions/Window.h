// Windows of convolutions and pooling over NCHW images.
#pragma once

#include <cstdint>

#include "runtime/plan/Library.h"

namespace sheaf::cpu {

struct Window {
  explicit Window(const plan::LibraryCall& call)
      : n(plan::integer(call, "n")),
        c(plan::integer(call, "c")),
        h(plan::integer(call, "h")),
        w(plan::integer(call, "w")),
        kh(plan::integer(call, "kh")),
        kw(plan::integer(call, "kw")),
        oh(plan::integer(call, "oh")),
        ow(plan::integer(call, "ow")),
        strideH(plan::integer(call, "stride_h")),
        strideW(plan::integer(call, "stride_w")),
        padTop(plan::integer(call, "pad_top")),
        padLeft(plan::integer(call, "pad_left")),
        dilationH(plan::integer(call, "dilation_h")),
        dilationW(plan::integer(call, "dilation_w")) {}

  // The input's row and column that kernel element (i, j) sees for output pixel (y, x); they may lie in the padding.
  int64_t row(int64_t y, int64_t i) const { return y * strideH - padTop + i * dilationH; }
  int64_t column(int64_t x, int64_t j) const { return x * strideW - padLeft + j * dilationW; }
  bool inside(int64_t row, int64_t column) const { return row >= 0 && row < h && column >= 0 && column < w; }

  int64_t n, c, h, w, kh, kw, oh, ow, strideH, strideW, padTop, padLeft, dilationH, dilationW;
};

}  // namespace sheaf::cpu
