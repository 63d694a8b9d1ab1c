// conv, its gradients, max_pool, its indices and its gradient: windows that move over NCHW or NHWC images.
#pragma once

#include "runtime/plan/CallSchema.h"

namespace sheaf::plan {

struct WindowShape {
  int64_t n = 0, c = 0, h = 0, w = 0;
  int64_t kh = 0, kw = 0, oh = 0, ow = 0;
  int64_t strideH = 1, strideW = 1;
  int64_t padTop = 0, padLeft = 0, padBottom = 0, padRight = 0;
  int64_t dilationH = 1, dilationW = 1;
  bool channelsLast = false;
};

// How a CPU cuts a convolution with its channels last into pieces of work, by its shape alone. A primitive computes
// some images and some channels: of the result, in conv_grad_input of the input. A piece that has not all channels is
// computed in scratch and copied to its place; a piece of a gradient that is read is copied there first.
struct ConvTiles {
  int64_t images, channels;
  int64_t pieces;        // of the channels
  int64_t parts;         // ranges of images whose filter gradients are summed apart, then together in order
  int64_t packedBytes;   // of a piece's filter, as the library wants it
  int64_t scratchBytes;  // of a piece of images, and of a filter gradient to be added: of one thread
};
enum class ConvKind { kForward, kGradInput, kGradFilter };

struct ConvolutionShape : WindowShape {
  int64_t o = 0, groups = 1;
  bool tf32 = false;

  // Rows of the unrolled input: the filter elements of a group's channels.
  int64_t patch() const { return product({c / groups, kh, kw}); }

  Status check() const;
  uint64_t deviceScratch() const;
  uint64_t packingBytes() const;

 protected:
  ConvTiles tiles(ConvKind kind) const;
  uint64_t scratchPerThread(ConvKind kind) const;

 private:
  ConvTiles imageTiles(bool gradient) const;
  ConvTiles filterTiles() const;
};

template <ConvKind kKind>
struct ConvolutionCall : ConvolutionShape {
  // With the channels last.
  ConvTiles tiles() const { return ConvolutionShape::tiles(kKind); }
  // Of the filter's copy, or of the parts of its gradient; 0 with the channels first.
  int64_t packedBytes() const {
    if (!channelsLast) return 0;
    const ConvTiles t = tiles();
    return product({t.packedBytes, t.pieces, t.parts});
  }
  uint64_t scratchPerThread() const { return ConvolutionShape::scratchPerThread(kKind); }
};

struct ConvCall : ConvolutionCall<ConvKind::kForward> {};
struct ConvGradInputCall : ConvolutionCall<ConvKind::kGradInput> {};
struct ConvGradFilterCall : ConvolutionCall<ConvKind::kGradFilter> {};
struct MaxPoolCall : WindowShape {};
struct MaxPoolIndicesCall : WindowShape {};
struct MaxPoolGradCall : WindowShape {};

inline constexpr Range kWindows{1, 1 << 20}, kPads{0, 1 << 20};

inline constexpr auto kWindowFields = std::tuple{
    required("n", &WindowShape::n, kSizes, "images"),
    required("c", &WindowShape::c, kSizes, "channels of the input"),
    required("h", &WindowShape::h, kSizes, "rows of the input"),
    required("w", &WindowShape::w, kSizes, "columns of the input"),
    required("kh", &WindowShape::kh, kWindows, "rows of the window"),
    required("kw", &WindowShape::kw, kWindows, "columns of the window"),
    required("oh", &WindowShape::oh, kSizes, "rows of the result"),
    required("ow", &WindowShape::ow, kSizes, "columns of the result"),
    defaulted("stride_h", &WindowShape::strideH, kWindows, "rows of the input from one window to the next"),
    defaulted("stride_w", &WindowShape::strideW, kWindows, "columns of the input from one window to the next"),
    defaulted("pad_top", &WindowShape::padTop, kPads, "rows before the input"),
    defaulted("pad_left", &WindowShape::padLeft, kPads, "columns before the input"),
    defaulted("pad_bottom", &WindowShape::padBottom, kPads, "rows after the input"),
    defaulted("pad_right", &WindowShape::padRight, kPads, "columns after the input"),
    defaulted("dilation_h", &WindowShape::dilationH, kWindows, "rows of the input from one of the window to the next"),
    defaulted("dilation_w", &WindowShape::dilationW, kWindows,
              "columns of the input from one of the window to the next"),
    flag("channels_last", &WindowShape::channelsLast, "images are [n, h, w, c]; of plans for CPUs only"),
};

inline constexpr auto kConvolutionFields =
    std::tuple_cat(kWindowFields, std::tuple{
                                      required("o", &ConvolutionShape::o, kSizes, "channels of the result"),
                                      defaulted("groups", &ConvolutionShape::groups, kSizes,
                                                "groups of channels; a group's results see its own inputs only"),
                                      flag("tf32", &ConvolutionShape::tf32, "operands may be rounded to TF32"),
                                  });

constexpr int64_t imageElements(const WindowShape& c) {
  return product({c.n, c.c, c.h, c.w});
}
constexpr int64_t pooledElements(const WindowShape& c) {
  return product({c.n, c.c, c.oh, c.ow});
}
constexpr int64_t filterElements(const ConvolutionShape& c) {
  return product({c.o, c.c / c.groups, c.kh, c.kw});
}
constexpr int64_t convolvedElements(const ConvolutionShape& c) {
  return product({c.n, c.o, c.oh, c.ow});
}

inline constexpr std::string_view kImage = "[n, c, h, w] or [n, h, w, c]", kFilter = "[o, c / groups, kh, kw]",
                                  kConvolved = "[n, o, oh, ow] or [n, oh, ow, o]",
                                  kPooled = "[n, c, oh, ow] or [n, oh, ow, c]";

// The operand that a convolution with its channels last has besides.
template <typename Call>
constexpr OperandRow<Call> packedFilter(std::string_view text) {
  return {"packed",     WRITE,
          Width::kByte, [](const Call& c) { return c.packedBytes(); },
          text,         [](const Call& c) { return c.channelsLast; }};
}

template <>
struct Schema<ConvCall> {
  using Call = ConvCall;
  static constexpr std::string_view kName = "conv";
  static constexpr std::string_view kText = "train.conv";
  static constexpr auto kFields = kConvolutionFields;
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"input", READ, Width::kF32, [](const Call& c) { return imageElements(c); }, kImage},
      {"filter", READ, Width::kF32, [](const Call& c) { return filterElements(c); }, kFilter},
      {"result", WRITE, Width::kF32, [](const Call& c) { return convolvedElements(c); }, kConvolved},
      packedFilter<Call>("workspace: the filter as the library wants it"),
  });
};

template <>
struct Schema<ConvGradInputCall> {
  using Call = ConvGradInputCall;
  static constexpr std::string_view kName = "conv_grad_input";
  static constexpr std::string_view kText = "The gradient of conv's input.";
  static constexpr auto kFields = kConvolutionFields;
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"gradient", READ, Width::kF32, [](const Call& c) { return convolvedElements(c); }, kConvolved},
      {"filter", READ, Width::kF32, [](const Call& c) { return filterElements(c); }, kFilter},
      {"result", WRITE, Width::kF32, [](const Call& c) { return imageElements(c); }, kImage},
      packedFilter<Call>("workspace: the filter as the library wants it"),
  });
};

template <>
struct Schema<ConvGradFilterCall> {
  using Call = ConvGradFilterCall;
  static constexpr std::string_view kName = "conv_grad_filter";
  static constexpr std::string_view kText = "The gradient of conv's filter.";
  static constexpr auto kFields = kConvolutionFields;
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"input", READ, Width::kF32, [](const Call& c) { return imageElements(c); }, kImage},
      {"gradient", READ, Width::kF32, [](const Call& c) { return convolvedElements(c); }, kConvolved},
      {"result", WRITE, Width::kF32, [](const Call& c) { return filterElements(c); }, kFilter},
      packedFilter<Call>("workspace: parts of the result as the library makes them"),
  });
};

template <>
struct Schema<MaxPoolCall> {
  using Call = MaxPoolCall;
  static constexpr std::string_view kName = "max_pool";
  static constexpr std::string_view kText = "The largest element of each window; NaN if one is.";
  static constexpr auto kFields = kWindowFields;
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"input", READ, Width::kF32, [](const Call& c) { return imageElements(c); }, kImage},
      {"result", WRITE, Width::kF32, [](const Call& c) { return pooledElements(c); }, kPooled},
  });
};

template <>
struct Schema<MaxPoolIndicesCall> {
  using Call = MaxPoolIndicesCall;
  static constexpr std::string_view kName = "max_pool_indices";
  static constexpr std::string_view kText =
      "Where each window's first maximum is in its channel's image, row * w + column; -1 if all of it is padding.";
  static constexpr auto kFields = kWindowFields;
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"input", READ, Width::kF32, [](const Call& c) { return imageElements(c); }, kImage},
      {"result", WRITE, Width::kI64, [](const Call& c) { return pooledElements(c); }, kPooled},
  });
};

template <>
struct Schema<MaxPoolGradCall> {
  using Call = MaxPoolGradCall;
  static constexpr std::string_view kName = "max_pool_grad";
  static constexpr std::string_view kText = "Adds each window's gradient to its first maximum.";
  static constexpr auto kFields = kWindowFields;
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"input", READ, Width::kF32, [](const Call& c) { return imageElements(c); }, kImage},
      {"gradient", READ, Width::kF32, [](const Call& c) { return pooledElements(c); }, kPooled},
      {"result", WRITE, Width::kF32, [](const Call& c) { return imageElements(c); }, kImage},
  });
};

}  // namespace sheaf::plan
