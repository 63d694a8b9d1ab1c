#include "runtime/plan/calls/Windows.h"

#include "runtime/base/Text.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::plan {
namespace {

// Columns of the unrolled input that are multiplied at a time.
int64_t rangePixels(const ConvolutionShape& c) {
  return convPixels(c.patch(), product({c.oh, c.ow}));
}

int64_t ceilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t roundUp(int64_t a, int64_t multiple) {
  return ceilDiv(a, multiple) * multiple;
}

// A filter in one of oneDNN's blocked layouts: of blocks of 16 channels, or in the forward pass of so many registers of
// 16 outputs as its kernel computes together, three or four.
int64_t packedFilterBytes(const ConvolutionShape& c, int64_t inputs, int64_t outputs, ConvKind kind) {
  const int64_t taps = product({c.kh, c.kw, sizeof(float)});
  if (c.groups == c.c && c.groups == c.o) return product({roundUp(c.groups, 16), taps});
  const int64_t blocks =
      kind == ConvKind::kForward ? std::max(roundUp(outputs, 64), roundUp(outputs, 48)) : roundUp(outputs, 16);
  return product({c.groups, blocks, roundUp(inputs, 16), taps});
}

}  // namespace

Status ConvolutionShape::check() const {
  if (c % groups != 0 || o % groups != 0)
    return Status::error(cat("its ", c, " and ", o, " channels are not multiples of its ", groups, " groups"));
  return Status();
}

ConvTiles ConvolutionShape::tiles(ConvKind kind) const {
  return kind == ConvKind::kGradFilter ? filterTiles() : imageTiles(kind == ConvKind::kGradInput);
}

ConvTiles ConvolutionShape::imageTiles(bool gradient) const {
  // A filter that stays in the second-level cache is read for each piece of images, a larger one piece by piece.
  constexpr int64_t kCachedFilter = 1 << 20, kChannels = 64, kScratchFloats = 128 << 10;
  // Pieces of images at least, and pixels of one, where there are so many: a filter's elements are read once for them.
  constexpr int64_t kItems = 16, kPixels = 32;
  const int64_t all = gradient ? c : o, pixels = gradient ? product({h, w}) : product({oh, ow});
  const bool whole = groups > 1 || product({o, patch(), sizeof(float)}) <= kCachedFilter;
  ConvTiles t{1, whole ? all : std::min(all, kChannels), 1, 1, 0, 0};
  t.pieces = ceilDiv(all, t.channels);
  if (t.pieces == 1) {
    t.images = std::min(n, std::max(ceilDiv(n, kItems), ceilDiv(kPixels, pixels)));
  } else {
    const int64_t one = product({pixels, t.channels});
    t.images = std::clamp<int64_t>(kScratchFloats / one, 1, n);
    t.scratchBytes = product({one, t.images, sizeof(float)});
  }
  t.packedBytes = gradient ? packedFilterBytes(*this, t.channels / groups, o / groups, ConvKind::kGradInput)
                           : packedFilterBytes(*this, c / groups, t.channels / groups, ConvKind::kForward);
  return t;
}

ConvTiles ConvolutionShape::filterTiles() const {
  // A small filter is summed whole in several parts, of a larger one a piece of at least a register's width. Pieces of
  // work are at least so many, where there is enough to do.
  constexpr int64_t kSmallFilter = 256 << 10, kRegister = 16, kItems = 8, kPieces = 16;
  // Of input and gradient, read again for each register of inputs: they stay in the second-level cache.
  constexpr int64_t kImageFloats = 96 << 10;
  const bool whole = groups > 1 || product({o, patch(), sizeof(float)}) <= kSmallFilter;
  ConvTiles t{1, whole ? o : std::min(o, roundUp(ceilDiv(o, kPieces), kRegister)), 1, 1, 0, 0};
  t.pieces = ceilDiv(o, t.channels);
  t.parts = std::min(n, ceilDiv(kItems, t.pieces));
  const int64_t most = ceilDiv(n, t.parts), slice = product({oh, ow, t.channels});
  t.images = std::clamp<int64_t>(kImageFloats / saturatingAdd(product({h, w, c}), slice), 1, most);
  t.images = ceilDiv(most, ceilDiv(most, t.images));
  t.packedBytes = packedFilterBytes(*this, c / groups, t.channels / groups, ConvKind::kGradFilter);
  if (t.pieces > 1) t.scratchBytes = static_cast<int64_t>(scratchOfFloats(product({slice, t.images})));
  if (t.images < most) t.scratchBytes = saturatingAdd(t.scratchBytes, t.packedBytes);
  return t;
}

uint64_t ConvolutionShape::scratchPerThread(ConvKind kind) const {
  const uint64_t columns = scratchOfFloats(product({patch(), rangePixels(*this)}));
  if (!channelsLast) return columns;
  // What oneDNN asks for besides: an image where strides leave out pixels, and tables.
  constexpr int64_t kTables = 64 << 10, kImages = 256 << 10;
  const int64_t image = std::min(product({c, std::max(product({h, w}), product({oh, ow}))}), kImages);
  const int64_t bytes =
      saturatingAdd(tiles(kind).scratchBytes, saturatingAdd(kTables, product({image, sizeof(float)})));
  return std::max(columns, scratchOfFloats(bytes / int64_t{sizeof(float)} + 1));
}

uint64_t ConvolutionShape::deviceScratch() const {
  if (channelsLast) return 0;
  const ConvScratch scratch = convScratch(n, product({c, kh, kw}), product({oh, ow}));
  return static_cast<uint64_t>(saturatingAdd(scratch.columnBytes, scratch.workspaceBytes));
}

uint64_t ConvolutionShape::packingBytes() const {
  const int64_t outputs = o / groups, pixels = rangePixels(*this);
  const uint64_t first =
      std::max({sgemmPackingBytes(outputs, pixels, patch()), sgemmPackingBytes(patch(), pixels, outputs),
                sgemmPackingBytes(outputs, patch(), pixels)});
  if (!channelsLast) return first;
  return std::max({first, sgemmPackingBytes(pixels, outputs, patch()), sgemmPackingBytes(pixels, patch(), outputs)});
}

}  // namespace sheaf::plan
