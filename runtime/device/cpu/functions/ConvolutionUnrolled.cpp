// Convolutions of images with their channels last as matrix products of the unrolled input (a row per output pixel, in
// it the channels of each filter element) with the filter, a range of pixels at a time.
#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/functions/ConvolutionChannelsLast.h"
#include "runtime/device/cpu/functions/ConvolutionProducts.h"
#include "runtime/device/cpu/functions/Sgemm.h"

namespace sheaf::cpu {
namespace {

class Unrolled : public ConvolutionProducts {
 public:
  using ConvolutionProducts::ConvolutionProducts;

 protected:
  // Where a channel of an image begins.
  int64_t inputOffset(int64_t image, int64_t channel) const {
    return image * window_.h * window_.w * window_.c + channel;
  }
  int64_t resultOffset(int64_t image, int64_t pixel, int64_t channel) const {
    return (image * pixels_ + pixel) * o_ + channel;
  }

  // Calls visit(inside, offset of the pixel in the image) for the pixels from `first` on, and for each its taps.
  template <typename Visit>
  void forTaps(int64_t first, int64_t count, Visit visit) const {
    for (int64_t pixel = first; pixel < first + count; ++pixel)
      for (int64_t i = 0; i < window_.kh; ++i)
        for (int64_t j = 0; j < window_.kw; ++j) {
          const int64_t row = window_.row(pixel / window_.ow, i), column = window_.column(pixel % window_.ow, j);
          visit(window_.inside(row, column), (row * window_.w + column) * window_.c);
        }
  }

  // columns[pixel - first, tap, channel] of `channels` channels from `input` on.
  void unroll(const float* input, int64_t channels, int64_t first, int64_t count, float* columns) const {
    forTaps(first, count, [&](bool inside, int64_t at) {
      if (inside)
        std::memcpy(columns, input + at, channels * sizeof(float));
      else
        std::memset(columns, 0, channels * sizeof(float));
      columns += channels;
    });
  }

  // packed[output, tap, input] = filter[output, input, tap]
  void pack(const Invocation& invocation, const float* filter, float* packed) const {
    invocation.pool.run(o_, [&](int64_t output, int) {
      const float* from = filter + output * patch_;
      float* to = packed + output * patch_;
      for (int64_t tap = 0; tap < taps_; ++tap)
        for (int64_t c = 0; c < groupInputs_; ++c) *to++ = from[c * taps_ + tap];
    });
  }
};

class Forward : public Unrolled {
 public:
  using Unrolled::Unrolled;
  using Call = plan::ConvCall;

  Status run(const Invocation& invocation) const override {
    const float *input = invocation.operand<float>(plan::kOperand<Call, "input">),
                *filter = invocation.operand<float>(plan::kOperand<Call, "filter">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    float* packed = invocation.operand<float>(plan::kOperand<Call, "result"> + 1);
    pack(invocation, filter, packed);
    SgemmFailure failure;
    invocation.pool.run(window_.n * groups_ * ranges_, [&](int64_t item, int thread) {
      const int64_t first = item % ranges_ * rangePixels_, count = std::min(rangePixels_, pixels_ - first);
      const int64_t group = item / ranges_ % groups_, image = item / ranges_ / groups_;
      float* columns = scratch(invocation, thread);
      unroll(input + inputOffset(image, group * groupInputs_), groupInputs_, first, count, columns);
      failure.note(sgemm(false, true, count, groupOutputs_, patch_, 1, columns, patch_,
                         packed + group * groupOutputs_ * patch_, patch_, false,
                         result + resultOffset(image, first, group * groupOutputs_), o_));
    });
    return failure.status();
  }
};

class GradInput : public Unrolled {
 public:
  using Unrolled::Unrolled;
  using Call = plan::ConvGradInputCall;

  // Windows overlap, so one item is a whole group of an image, its ranges in order.
  Status run(const Invocation& invocation) const override {
    const float *gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">),
                *filter = invocation.operand<float>(plan::kOperand<Call, "filter">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    float* packed = invocation.operand<float>(plan::kOperand<Call, "result"> + 1);
    pack(invocation, filter, packed);
    SgemmFailure failure;
    invocation.pool.run(window_.n * groups_, [&](int64_t item, int thread) {
      const int64_t group = item % groups_, image = item / groups_;
      float *columns = scratch(invocation, thread), *to = result + inputOffset(image, group * groupInputs_);
      for (int64_t pixel = 0; pixel < window_.h * window_.w; ++pixel)
        std::memset(to + pixel * window_.c, 0, groupInputs_ * sizeof(float));
      for (int64_t first = 0; first < pixels_; first += rangePixels_) {
        const int64_t count = std::min(rangePixels_, pixels_ - first);
        failure.note(sgemm(false, false, count, patch_, groupOutputs_, 1,
                           gradient + resultOffset(image, first, group * groupOutputs_), o_,
                           packed + group * groupOutputs_ * patch_, patch_, false, columns, patch_));
        const float* from = columns;
        forTaps(first, count, [&](bool inside, int64_t at) {
          if (inside)
            for (int64_t c = 0; c < groupInputs_; ++c) to[at + c] += from[c];
          from += groupInputs_;
        });
      }
    });
    return failure.status();
  }
};

class GradFilter : public Unrolled {
 public:
  using Unrolled::Unrolled;
  using Call = plan::ConvGradFilterCall;

  // One item is a range of a group's input channels: all images and ranges of pixels in order.
  Status run(const Invocation& invocation) const override {
    const float *input = invocation.operand<float>(plan::kOperand<Call, "input">),
                *gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    float* packed = invocation.operand<float>(plan::kOperand<Call, "result"> + 1);
    constexpr int64_t kColumns = 64;  // of the product, at least
    const int64_t channels = std::max<int64_t>(kColumns / taps_, 1);
    const int64_t parts = (groupInputs_ + channels - 1) / channels;
    SgemmFailure failure;
    invocation.pool.run(groups_ * parts, [&](int64_t item, int thread) {
      const int64_t group = item / parts, channel = item % parts * channels;
      const int64_t width = std::min(channels, groupInputs_ - channel), row = taps_ * width;
      float* columns = scratch(invocation, thread);
      float* sums =
          packed + group * groupOutputs_ * patch_ + groupOutputs_ * taps_ * channel;  // [output, tap, channel]
      bool accumulate = false;
      for (int64_t image = 0; image < window_.n; ++image)
        for (int64_t first = 0; first < pixels_; first += rangePixels_, accumulate = true) {
          const int64_t count = std::min(rangePixels_, pixels_ - first);
          unroll(input + inputOffset(image, group * groupInputs_ + channel), width, first, count, columns);
          failure.note(sgemm(true, false, groupOutputs_, row, count, 1,
                             gradient + resultOffset(image, first, group * groupOutputs_), o_, columns, row, accumulate,
                             sums, row));
        }
      for (int64_t output = 0; output < groupOutputs_; ++output) {
        float* to = result + (group * groupOutputs_ + output) * patch_ + channel * taps_;
        for (int64_t c = 0; c < width; ++c)
          for (int64_t tap = 0; tap < taps_; ++tap) *to++ = sums[output * row + tap * width + c];
      }
    });
    return failure.status();
  }
};

}  // namespace

Function makeUnrolled(const plan::ConvCall& call, const CallSite& site) {
  return std::make_unique<Forward>(call, site);
}

Function makeUnrolled(const plan::ConvGradInputCall& call, const CallSite& site) {
  return std::make_unique<GradInput>(call, site);
}

Function makeUnrolled(const plan::ConvGradFilterCall& call, const CallSite& site) {
  return std::make_unique<GradFilter>(call, site);
}

}  // namespace sheaf::cpu
