// Max pooling, its indices and its gradient, a plane (one channel of one image) at a time.
#include <cmath>
#include <cstring>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/functions/Window.h"

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

}  // namespace

Function makeFunction(const plan::MaxPoolCall& call, const CallSite&) {
  return std::make_unique<MaxPool>(call);
}

Function makeFunction(const plan::MaxPoolIndicesCall& call, const CallSite&) {
  return std::make_unique<MaxPoolIndices>(call);
}

Function makeFunction(const plan::MaxPoolGradCall& call, const CallSite&) {
  return std::make_unique<MaxPoolGrad>(call);
}

}  // namespace sheaf::cpu
