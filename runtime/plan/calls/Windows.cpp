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
  // A filter that stays in the second-level cache is read for each piece of images, a larger one piece by piece.
  constexpr int64_t kCachedFilter = 1 << 20, kChannels = 64;
  // Pieces of work at least, and pixels of one, where there are so many: a filter's elements are read once for them.
  constexpr int64_t kItems = 16, kPixels = 32;
  constexpr int64_t kPieceFloats = 128 << 10;
  // Of the filter's gradient: registers' width, and pieces of work.
  constexpr int64_t kRegister = 16, kSums = 8;

  const int64_t all = kind == ConvKind::kGradInput ? c : o;
  const int64_t pixels = std::max<int64_t>(kind == ConvKind::kGradInput ? product({h, w}) : product({oh, ow}), 1);
  const int64_t images0 = std::max<int64_t>(n, 1);
  ConvTiles t{images0, all, 1, 1, 0, 0};
  if (kind == ConvKind::kGradFilter) {
    if (groups == 1) t.channels = std::min(all, std::max(roundUp(ceilDiv(all, 16), kRegister), kRegister));
    t.pieces = ceilDiv(all, t.channels);
    t.parts = std::min(images0, ceilDiv(kSums, t.pieces));
  } else {
    const int64_t filter = product({o, patch(), sizeof(float)});
    if (groups == 1 && filter > kCachedFilter) t.channels = std::min(all, kChannels);
    t.pieces = ceilDiv(all, t.channels);
  }
  const int64_t most = ceilDiv(images0, t.parts);
  if (kind != ConvKind::kGradFilter)
    t.images = std::min(most, std::max(ceilDiv(images0, ceilDiv(kItems, t.pieces)), ceilDiv(kPixels, pixels)));
  else
    t.images = most;
  if (t.pieces > 1) {
    const int64_t one = product({pixels, t.channels});
    const int64_t floats = kind == ConvKind::kGradFilter ? kPieceFloats / 2 : kPieceFloats;
    t.images = std::clamp<int64_t>(floats / std::max<int64_t>(one, 1), 1, t.images);
    t.images = ceilDiv(most, ceilDiv(most, t.images));
    t.scratchBytes = product({one, t.images, sizeof(float)});
  }
  t.packedBytes = kind == ConvKind::kGradInput ? packedFilterBytes(*this, t.channels / groups, o / groups, kind)
                                               : packedFilterBytes(*this, c / groups, t.channels / groups, kind);
  if (kind == ConvKind::kGradFilter && t.images < most)
    t.scratchBytes =
        saturatingAdd(static_cast<int64_t>(scratchOfFloats(t.scratchBytes / sizeof(float))), t.packedBytes);
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
