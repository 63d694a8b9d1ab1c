// Convolutions with the channels first, as matrix products of the filter with the unrolled input (one column per output
// pixel, one row per filter element), a range of pixels at a time.
#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/functions/ConvolutionChannelsLast.h"
#include "runtime/device/cpu/functions/ConvolutionProducts.h"
#include "runtime/device/cpu/functions/Sgemm.h"

namespace sheaf::cpu {
namespace {

class Convolution : public ConvolutionProducts {
 public:
  using ConvolutionProducts::ConvolutionProducts;

 protected:
  int64_t imageElements() const { return window_.h * window_.w; }
  // Offset of a group's channels of an image in the input, and in the result.
  int64_t inputOffset(int64_t image, int64_t group) const {
    return (image * window_.c + group * groupInputs_) * imageElements();
  }
  int64_t resultOffset(int64_t image, int64_t group) const { return (image * o_ + group * groupOutputs_) * pixels_; }

  // columns[(channel, i, j), pixel - first] = the input that filter element (i, j) sees, for `channels` channels.
  void unroll(const float* input, int64_t channels, int64_t first, int64_t count, float* columns) const {
    forWindows(channels, first, count, [&](bool inside, int64_t at) { *columns++ = inside ? input[at] : 0.0f; });
  }

  // The adjoint of unroll: adds.
  void rollUp(const float* columns, int64_t channels, int64_t first, int64_t count, float* input) const {
    forWindows(channels, first, count, [&](bool inside, int64_t at) {
      if (inside) input[at] += *columns;
      ++columns;
    });
  }

  // Calls visit(inside, position in the input) for every channel and filter element and the pixels from `first` on.
  template <typename Visit>
  void forWindows(int64_t channels, int64_t first, int64_t count, Visit visit) const {
    const Window& p = window_;
    for (int64_t channel = 0; channel < channels; ++channel)
      for (int64_t i = 0; i < p.kh; ++i)
        for (int64_t j = 0; j < p.kw; ++j) {
          int64_t y = first / p.ow, x = first % p.ow;
          for (int64_t pixel = 0; pixel < count; ++pixel) {
            const int64_t row = p.row(y, i), column = p.column(x, j);
            visit(p.inside(row, column), channel * imageElements() + row * p.w + column);
            if (++x == p.ow) x = 0, ++y;
          }
        }
  }
};

class Forward : public Convolution {
 public:
  using Convolution::Convolution;
  using Call = plan::ConvCall;

  Status run(const Invocation& invocation) const override {
    const float *input = invocation.operand<float>(plan::kOperand<Call, "input">),
                *filter = invocation.operand<float>(plan::kOperand<Call, "filter">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    SgemmFailure failure;
    invocation.pool.run(window_.n * groups_ * ranges_, [&](int64_t item, int thread) {
      const int64_t first = item % ranges_ * rangePixels_, count = std::min(rangePixels_, pixels_ - first);
      const int64_t group = item / ranges_ % groups_, image = item / ranges_ / groups_;
      float* columns = scratch(invocation, thread);
      unroll(input + inputOffset(image, group), groupInputs_, first, count, columns);
      failure.note(sgemm(false, false, groupOutputs_, count, patch_, 1, filter + group * groupOutputs_ * patch_, patch_,
                         columns, count, false, result + resultOffset(image, group) + first, pixels_));
    });
    return failure.status();
  }
};

class GradInput : public Convolution {
 public:
  using Convolution::Convolution;
  using Call = plan::ConvGradInputCall;

  // Windows overlap, so one item is a whole group of an image, its ranges in order.
  Status run(const Invocation& invocation) const override {
    const float *gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">),
                *filter = invocation.operand<float>(plan::kOperand<Call, "filter">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    SgemmFailure failure;
    invocation.pool.run(window_.n * groups_, [&](int64_t item, int thread) {
      const int64_t group = item % groups_, image = item / groups_;
      float *columns = scratch(invocation, thread), *to = result + inputOffset(image, group);
      std::memset(to, 0, groupInputs_ * imageElements() * sizeof(float));
      for (int64_t first = 0; first < pixels_; first += rangePixels_) {
        const int64_t count = std::min(rangePixels_, pixels_ - first);
        failure.note(sgemm(true, false, patch_, count, groupOutputs_, 1, filter + group * groupOutputs_ * patch_,
                           patch_, gradient + resultOffset(image, group) + first, pixels_, false, columns, count));
        rollUp(columns, groupInputs_, first, count, to);
      }
    });
    return failure.status();
  }
};

class GradFilter : public Convolution {
 public:
  using Convolution::Convolution;
  using Call = plan::ConvGradFilterCall;

  // One item is a range of a group's input channels: all images and ranges of pixels in order.
  Status run(const Invocation& invocation) const override {
    const float *input = invocation.operand<float>(plan::kOperand<Call, "input">),
                *gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    constexpr int64_t kRows = 64;  // of the product, at least
    const int64_t channels = std::max<int64_t>(kRows / taps_, 1);
    const int64_t parts = (groupInputs_ + channels - 1) / channels;
    SgemmFailure failure;
    invocation.pool.run(groups_ * parts, [&](int64_t item, int thread) {
      const int64_t group = item / parts, channel = item % parts * channels;
      const int64_t width = std::min(channels, groupInputs_ - channel);
      float* columns = scratch(invocation, thread);
      float* to = result + group * groupOutputs_ * patch_ + channel * taps_;
      bool accumulate = false;
      for (int64_t image = 0; image < window_.n; ++image) {
        const float* from = input + inputOffset(image, group) + channel * imageElements();
        for (int64_t first = 0; first < pixels_; first += rangePixels_, accumulate = true) {
          const int64_t count = std::min(rangePixels_, pixels_ - first);
          unroll(from, width, first, count, columns);
          failure.note(sgemm(false, true, groupOutputs_, width * taps_, count, 1,
                             gradient + resultOffset(image, group) + first, pixels_, columns, count, accumulate, to,
                             patch_));
        }
      }
    });
    return failure.status();
  }
};

}  // namespace

Function makeFunction(const plan::ConvCall& call, const CallSite& site) {
  if (call.channelsLast) return makeChannelsLast(call, site);
  return std::make_unique<Forward>(call, site);
}

Function makeFunction(const plan::ConvGradInputCall& call, const CallSite& site) {
  if (call.channelsLast) return makeChannelsLast(call, site);
  return std::make_unique<GradInput>(call, site);
}

Function makeFunction(const plan::ConvGradFilterCall& call, const CallSite& site) {
  if (call.channelsLast) return makeChannelsLast(call, site);
  return std::make_unique<GradFilter>(call, site);
}

}  // namespace sheaf::cpu
