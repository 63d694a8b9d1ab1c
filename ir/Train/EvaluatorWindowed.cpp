// Convolution and pooling over NCHW or NHWC, and their gradients.
#include <cmath>
#include <limits>

#include "ir/Train/EvaluatorDetail.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace sheaf::train;
using namespace sheaf::train::evaluator;

namespace {

// Positions of a window: output (y, x) and tap (i, j) read input (y * stride - top + i * dilation, ...).
struct Window {
  ArrayRef<int64_t> strides, pads, dilations;
  int64_t height, width;  // of the input
  int64_t kernelH, kernelW;
  int64_t outH, outW;

  // Calls f(index in the output plane, index in the input plane, index of the tap) for all taps inside the input.
  template <typename F>
  void forTaps(int64_t y, int64_t x, F f) const {
    for (int64_t i = 0; i < kernelH; ++i)
      for (int64_t j = 0; j < kernelW; ++j) {
        int64_t row = y * strides[0] - pads[0] + i * dilations[0], column = x * strides[1] - pads[1] + j * dilations[1];
        if (row >= 0 && row < height && column >= 0 && column < width)
          f(y * outW + x, row * width + column, i * kernelW + j);
      }
  }

  template <typename F>
  void forAll(F f) const {
    for (int64_t y = 0; y < outH; ++y)
      for (int64_t x = 0; x < outW; ++x) forTaps(y, x, f);
  }
};

template <typename Op>
Window windowOf(Op op, RankedTensorType input, ArrayRef<int64_t> kernel, RankedTensorType output) {
  const int64_t rows = ImageLayout(op.getChannelsLast()).rows, columns = rows + 1;
  return {op.getStrides(), op.getPads(), op.getDilations(),       input.getDimSize(rows),    input.getDimSize(columns),
          kernel[0],       kernel[1],    output.getDimSize(rows), output.getDimSize(columns)};
}

// Where a pixel of a channel of an image lies.
struct Place {
  int64_t channels, pixels;
  bool channelsLast;

  int64_t operator()(int64_t image, int64_t channel, int64_t pixel) const {
    return channelsLast ? (image * pixels + pixel) * channels + channel : (image * channels + channel) * pixels + pixel;
  }
};

// Calls f(output element, input element, filter element) for every product of a convolution.
template <typename Op, typename F>
LogicalResult forProducts(Op op, RankedTensorType input, RankedTensorType filter, RankedTensorType output, F f) {
  const int64_t groups = op.getGroups(), channels = ImageLayout(op.getChannelsLast()).channels;
  if (input.getRank() != 4 || filter.getRank() != 4 || output.getRank() != 4 || groups < 1 ||
      op.getStrides().size() != 2 || op.getPads().size() != 4 || op.getDilations().size() != 2 ||
      filter.getDimSize(1) * groups != input.getDimSize(channels) ||
      filter.getDimSize(0) != output.getDimSize(channels) || filter.getDimSize(0) % groups ||
      input.getDimSize(0) != output.getDimSize(0))
    return op.emitOpError("is not a 2-D convolution of these shapes");
  Window window = windowOf(op, input, filter.getShape().drop_front(2), output);
  int64_t outputs = filter.getDimSize(0), depth = filter.getDimSize(1);
  const Place inAt{depth * groups, window.height * window.width, op.getChannelsLast()};
  const Place outAt{outputs, window.outH * window.outW, op.getChannelsLast()};
  int64_t taps = window.kernelH * window.kernelW;
  for (int64_t n = 0; n < input.getDimSize(0); ++n)
    for (int64_t o = 0; o < outputs; ++o)
      for (int64_t c = 0; c < depth; ++c) {
        int64_t channel = o / (outputs / groups) * depth + c;
        window.forAll([&](int64_t out, int64_t in, int64_t tap) {
          f(outAt(n, o, out), inAt(n, channel, in), (o * depth + c) * taps + tap);
        });
      }
  return success();
}

LogicalResult conv(ConvOp op, const Tensor& x, const Tensor& w, Tensor& out) {
  return forProducts(op, x.type, w.type, out.type,
                     [&](int64_t o, int64_t i, int64_t k) { out.f[o] += x.f[i] * w.f[k]; });
}

LogicalResult convGradInput(ConvGradInputOp op, const Tensor& g, const Tensor& w, Tensor& out) {
  return forProducts(op, out.type, w.type, g.type,
                     [&](int64_t o, int64_t i, int64_t k) { out.f[i] += g.f[o] * w.f[k]; });
}

LogicalResult convGradFilter(ConvGradFilterOp op, const Tensor& x, const Tensor& g, Tensor& out) {
  return forProducts(op, x.type, out.type, g.type,
                     [&](int64_t o, int64_t i, int64_t k) { out.f[k] += g.f[o] * x.f[i]; });
}

// Calls f(output element, input element of the first maximum, its pixel) for every window; a NaN is greater than all. A
// window that lies in the padding has no maximum (-1).
template <typename Op, typename F>
LogicalResult forMaxima(Op op, const Tensor& x, RankedTensorType output, F f) {
  if (x.type.getRank() != 4 || output.getRank() != 4 || op.getKernel().size() != 2 || op.getStrides().size() != 2 ||
      op.getPads().size() != 4 || op.getDilations().size() != 2)
    return op.emitOpError("is not a 2-D pooling of these shapes");
  Window window = windowOf(op, x.type, op.getKernel(), output);
  const int64_t channels = x.type.getDimSize(ImageLayout(op.getChannelsLast()).channels);
  const Place inAt{channels, window.height * window.width, op.getChannelsLast()};
  const Place outAt{channels, window.outH * window.outW, op.getChannelsLast()};
  for (int64_t n = 0; n < x.type.getDimSize(0); ++n)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t y = 0; y < window.outH; ++y)
        for (int64_t column = 0; column < window.outW; ++column) {
          int64_t best = -1, pixel = -1;
          window.forTaps(y, column, [&](int64_t, int64_t in, int64_t) {
            const int64_t at = inAt(n, c, in);
            if (best < 0 || x.f[at] > x.f[best] || (std::isnan(x.f[at]) && !std::isnan(x.f[best]))) {
              best = at;
              pixel = in;
            }
          });
          f(outAt(n, c, y * window.outW + column), best, pixel);
        }
  return success();
}

LogicalResult maxPool(MaxPoolOp op, const Tensor& x, Tensor& out) {
  return forMaxima(op, x, out.type, [&](int64_t o, int64_t best, int64_t) {
    out.f[o] = best < 0 ? -std::numeric_limits<double>::infinity() : x.f[best];
  });
}

LogicalResult maxPoolIndices(MaxPoolIndicesOp op, const Tensor& x, Tensor& out) {
  return forMaxima(op, x, out.type, [&](int64_t o, int64_t, int64_t pixel) { out.i[o] = pixel; });
}

LogicalResult maxPoolGrad(MaxPoolGradOp op, const Tensor& x, const Tensor& g, Tensor& out) {
  return forMaxima(op, x, g.type, [&](int64_t o, int64_t best, int64_t) {
    if (best >= 0) out.f[best] += g.f[o];
  });
}

}  // namespace

Outcome evaluator::evaluateWindowed(Operation* op, Operands in, Results out) {
  return llvm::TypeSwitch<Operation*, Outcome>(op)
      .Case<ConvOp>([&](auto o) { return conv(o, *in[0], *in[1], out[0]); })
      .Case<ConvGradInputOp>([&](auto o) { return convGradInput(o, *in[0], *in[1], out[0]); })
      .Case<ConvGradFilterOp>([&](auto o) { return convGradFilter(o, *in[0], *in[1], out[0]); })
      .Case<MaxPoolOp>([&](auto o) { return maxPool(o, *in[0], out[0]); })
      .Case<MaxPoolIndicesOp>([&](auto o) { return maxPoolIndices(o, *in[0], out[0]); })
      .Case<MaxPoolGradOp>([&](auto o) { return maxPoolGrad(o, *in[0], *in[1], out[0]); })
      .Default([](auto) { return std::nullopt; });
}
