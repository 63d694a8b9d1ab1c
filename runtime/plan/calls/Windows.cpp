#include "runtime/plan/calls/Windows.h"

#include "runtime/base/Text.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::plan {
namespace {

// Columns of the unrolled input that are multiplied at a time.
int64_t rangePixels(const ConvolutionShape& c) {
  return convPixels(c.patch(), product({c.oh, c.ow}));
}

}  // namespace

Status ConvolutionShape::check() const {
  if (c % groups != 0 || o % groups != 0)
    return Status::error(cat("its ", c, " and ", o, " channels are not multiples of its ", groups, " groups"));
  return Status();
}

uint64_t ConvolutionShape::scratchPerThread() const {
  return scratchOfFloats(product({patch(), rangePixels(*this)}));
}

uint64_t ConvolutionShape::deviceScratch() const {
  const ConvScratch scratch = convScratch(n, product({c, kh, kw}), product({oh, ow}));
  return static_cast<uint64_t>(saturatingAdd(scratch.columnBytes, scratch.workspaceBytes));
}

uint64_t ConvolutionShape::packingBytes() const {
  const int64_t outputs = o / groups, pixels = rangePixels(*this);
  return std::max({sgemmPackingBytes(outputs, pixels, patch()), sgemmPackingBytes(patch(), pixels, outputs),
                   sgemmPackingBytes(outputs, patch(), pixels)});
}

}  // namespace sheaf::plan
