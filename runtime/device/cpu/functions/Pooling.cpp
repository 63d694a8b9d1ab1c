// Max pooling, its indices and its gradient: a plane (one channel of one image) at a time, or with the channels last an
// image at a time, some channels together.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/functions/Window.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

class Pooling : public LibraryFunction {
 public:
  explicit Pooling(const plan::WindowShape& call) : window_(call) {}

 protected:
  // The position in the plane of a window's first maximum (a NaN is one); -1 if the window lies in the padding.
  int64_t firstMaximum(const float* plane, int64_t y, int64_t x) const {
    int64_t best = -1;
    for (int64_t i = 0; i < window_.kh; ++i) {
      for (int64_t j = 0; j < window_.kw; ++j) {
        const int64_t row = window_.row(y, i), column = window_.column(x, j);
        if (!window_.inside(row, column)) continue;
        const int64_t at = row * window_.w + column;
        if (best < 0 || plane[at] > plane[best] || (std::isnan(plane[at]) && !std::isnan(plane[best]))) best = at;
      }
    }
    return best;
  }
  // Calls visit(plane, output pixel, position of its maximum) for all pixels, a plane at a time.
  template <typename Begin, typename Visit>
  void forMaxima(const Invocation& invocation, const float* input, Begin begin, Visit visit) const {
    invocation.pool.run(window_.n * window_.c, [&](int64_t plane, int) {
      begin(plane);
      int64_t pixel = plane * window_.oh * window_.ow;
      for (int64_t y = 0; y < window_.oh; ++y)
        for (int64_t x = 0; x < window_.ow; ++x)
          visit(plane, pixel++, firstMaximum(input + plane * planeElements(), y, x));
    });
  }
  int64_t planeElements() const { return window_.h * window_.w; }

  const Window window_;
};

class MaxPool : public Pooling {
 public:
  using Pooling::Pooling;
  using Call = plan::MaxPoolCall;

  Status run(const Invocation& invocation) const override {
    const float* input = invocation.operand<float>(plan::kOperand<Call, "input">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    forMaxima(
        invocation, input, [](int64_t) {},
        [&](int64_t plane, int64_t pixel, int64_t best) {
          result[pixel] = best < 0 ? -INFINITY : input[plane * planeElements() + best];
        });
    return Status();
  }
};

class MaxPoolIndices : public Pooling {
 public:
  using Pooling::Pooling;
  using Call = plan::MaxPoolIndicesCall;

  Status run(const Invocation& invocation) const override {
    int64_t* result = invocation.operand<int64_t>(plan::kOperand<Call, "result">);
    forMaxima(
        invocation, invocation.operand<float>(plan::kOperand<Call, "input">), [](int64_t) {},
        [&](int64_t, int64_t pixel, int64_t best) { result[pixel] = best; });
    return Status();
  }
};

class MaxPoolGrad : public Pooling {
 public:
  using Pooling::Pooling;
  using Call = plan::MaxPoolGradCall;

  Status run(const Invocation& invocation) const override {
    const float* gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    forMaxima(
        invocation, invocation.operand<float>(plan::kOperand<Call, "input">),
        [&](int64_t plane) { std::memset(result + plane * planeElements(), 0, planeElements() * sizeof(float)); },
        [&](int64_t plane, int64_t pixel, int64_t best) {
          if (best >= 0) result[plane * planeElements() + best] += gradient[pixel];
        });
    return Status();
  }
};

// With the channels last.
class PoolingLast : public LibraryFunction {
 public:
  explicit PoolingLast(const plan::WindowShape& call) : window_(call) {}

 protected:
  // Channels that are looked at together: they stay in registers and the first-level cache.
  static constexpr int64_t kTogether = 256;

  // Calls visit(first element of the pixel, pixel) for all pixels of the input that the window of output pixel (y, x)
  // sees, in order.
  template <typename Visit>
  void forTaps(int64_t image, int64_t y, int64_t x, Visit visit) const {
    for (int64_t i = 0; i < window_.kh; ++i) {
      for (int64_t j = 0; j < window_.kw; ++j) {
        const int64_t row = window_.row(y, i), column = window_.column(x, j);
        if (!window_.inside(row, column)) continue;
        const int64_t pixel = row * window_.w + column;
        visit((image * window_.h * window_.w + pixel) * window_.c, pixel);
      }
    }
  }
  // Calls visit(image, y, x, first element of the output pixel) for all output pixels of an item, one of rows().
  template <typename Visit>
  void forRow(int64_t item, Visit visit) const {
    for (int64_t x = 0; x < window_.ow; ++x)
      visit(item / window_.oh, item % window_.oh, x, (item * window_.ow + x) * window_.c);
  }
  int64_t rows() const { return window_.n * window_.oh; }

  // The largest values of `count` channels that the window sees.
  void maxima(const float* input, int64_t image, int64_t y, int64_t x, int64_t channel, int64_t count,
              float* result) const {
    bool any = false;
    forTaps(image, y, x, [&](int64_t at, int64_t) {
      const float* values = input + at + channel;
      any ? loops().maximum(result, values, count) : void(std::memcpy(result, values, count * sizeof(float)));
      any = true;
    });
    if (!any) std::fill_n(result, count, -INFINITY);
  }

  const Window window_;
};

class MaxPoolLast : public PoolingLast {
 public:
  using PoolingLast::PoolingLast;
  using Call = plan::MaxPoolCall;

  Status run(const Invocation& invocation) const override {
    const float* input = invocation.operand<float>(plan::kOperand<Call, "input">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    invocation.pool.run(rows(), [&](int64_t item, int) {
      forRow(item, [&](int64_t image, int64_t y, int64_t x, int64_t to) {
        maxima(input, image, y, x, 0, window_.c, result + to);
      });
    });
    return Status();
  }
};

class MaxPoolIndicesLast : public PoolingLast {
 public:
  using PoolingLast::PoolingLast;
  using Call = plan::MaxPoolIndicesCall;

  Status run(const Invocation& invocation) const override {
    const float* input = invocation.operand<float>(plan::kOperand<Call, "input">);
    int64_t* result = invocation.operand<int64_t>(plan::kOperand<Call, "result">);
    invocation.pool.run(rows(), [&](int64_t item, int) {
      forRow(item, [&](int64_t image, int64_t y, int64_t x, int64_t to) {
        for (int64_t c = 0; c < window_.c; ++c) {
          float best = 0;
          result[to + c] = -1;
          forTaps(image, y, x, [&](int64_t at, int64_t pixel) {
            const float value = input[at + c];
            if (result[to + c] >= 0 && !(value > best) && !(std::isnan(value) && !std::isnan(best))) return;
            best = value;
            result[to + c] = pixel;
          });
        }
      });
    });
    return Status();
  }
};

class MaxPoolGradLast : public PoolingLast {
 public:
  using PoolingLast::PoolingLast;
  using Call = plan::MaxPoolGradCall;

  // Windows overlap, so one item is a whole image.
  Status run(const Invocation& invocation) const override {
    const float *input = invocation.operand<float>(plan::kOperand<Call, "input">),
                *gradient = invocation.operand<float>(plan::kOperand<Call, "gradient">);
    float* result = invocation.operand<float>(plan::kOperand<Call, "result">);
    const int64_t elements = window_.h * window_.w * window_.c;
    invocation.pool.run(window_.n, [&](int64_t image, int) {
      std::memset(result + image * elements, 0, elements * sizeof(float));
      for (int64_t row = image * window_.oh; row < (image + 1) * window_.oh; ++row)
        forRow(row, [&](int64_t, int64_t y, int64_t x, int64_t from) {
          for (int64_t channel = 0; channel < window_.c; channel += kTogether) {
            const int64_t count = std::min(kTogether, window_.c - channel);
            float best[kTogether];
            uint32_t open[kTogether];
            maxima(input, image, y, x, channel, count, best);
            std::fill_n(open, count, 1);
            forTaps(image, y, x, [&](int64_t at, int64_t) {
              loops().addAtMaximum(result + at + channel, gradient + from + channel, input + at + channel, best, open,
                                   count);
            });
          }
        });
    });
    return Status();
  }
};

template <typename First, typename Last, typename Call>
Function choose(const Call& call) {
  if (call.channelsLast) return std::make_unique<Last>(call);
  return std::make_unique<First>(call);
}

}  // namespace

Function makeFunction(const plan::MaxPoolCall& call, const CallSite&) {
  return choose<MaxPool, MaxPoolLast>(call);
}

Function makeFunction(const plan::MaxPoolIndicesCall& call, const CallSite&) {
  return choose<MaxPoolIndices, MaxPoolIndicesLast>(call);
}

Function makeFunction(const plan::MaxPoolGradCall& call, const CallSite&) {
  return choose<MaxPoolGrad, MaxPoolGradLast>(call);
}

}  // namespace sheaf::cpu
