// Reductions and running sums: sum_partials, cumsum, square_sum, gradient_norm; and zero.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/simd/Halves.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cpu {
namespace {

class SumPartials : public LibraryFunction {
 public:
  using Call = plan::SumPartialsCall;

  explicit SumPartials(const Call& call)
      : p_(call.p), c_(call.c), half_(plan::isWidened(call.type)), loops_(halves(call.type)) {}

  Status run(const Invocation& invocation) const override {
    const float* source = invocation.operand<float>(plan::kOperand<Call, "source">);
    // Columns of an item: few enough that their sums stay in the first-level cache.
    constexpr int64_t kColumns = 1024;
    invocation.pool.run((c_ + kColumns - 1) / kColumns, [&](int64_t item, int) {
      const int64_t column = item * kColumns, width = std::min(kColumns, c_ - column);
      float block[kColumns];
      float* sums = half_ ? block : invocation.operand<float>(plan::kOperand<Call, "destination">) + column;
      std::memcpy(sums, source + column, width * sizeof(float));
      for (int64_t row = 1; row < p_; ++row) loops().add(sums, source + row * c_ + column, width);
      if (half_) loops_.narrow(sums, invocation.operand<uint16_t>(plan::kOperand<Call, "destination">) + column, width);
    });
    return Status();
  }

 private:
  int64_t p_, c_;
  bool half_;
  const simd::Halves& loops_;
};

class CumSum : public LibraryFunction {
 public:
  using Call = plan::CumSumCall;

  explicit CumSum(const Call& call)
      : outer_(call.outer),
        n_(call.n),
        inner_(call.inner),
        exclusive_(call.exclusive),
        reverse_(call.reverse),
        type_(call.type) {}

  Status run(const Invocation& invocation) const override {
    return plan::visitElement<&plan::ElementFacts::arithmetic>(
        type_, [&](auto element) { return sum<typename decltype(element)::Sum>(invocation); });
  }

 private:
  template <typename T>
  Status sum(const Invocation& invocation) const {
    const T* source = invocation.operand<T>(plan::kOperand<Call, "source">);
    T* destination = invocation.operand<T>(plan::kOperand<Call, "destination">);
    invocation.pool.run(outer_, [&](int64_t o, int) {
      for (int64_t i = 0; i < inner_; ++i) {
        const int64_t base = o * n_ * inner_ + i;
        T total = 0;
        for (int64_t j = 0; j < n_; ++j) {
          const int64_t at = base + (reverse_ ? n_ - 1 - j : j) * inner_;
          T value = source[at];
          T before = total;
          total = j == 0 ? value : total + value;
          destination[at] = exclusive_ ? before : total;
        }
      }
    });
    return Status();
  }

  int64_t outer_, n_, inner_;
  bool exclusive_, reverse_;
  plan::ElementType type_;
};

class SquareSum : public LibraryFunction {
 public:
  using Call = plan::SquareSumCall;

  explicit SquareSum(const Call& call) : n_(call.n), half_(plan::isWidened(call.type)), loops_(halves(call.type)) {}

  Status run(const Invocation& invocation) const override {
    constexpr int64_t kBlock = plan::kSquareSumBlock;
    constexpr int64_t kRound = 1024;  // blocks computed before their sums are added up
    constexpr int64_t kBlocksPerItem = 16;
    const int64_t blocks = (n_ + kBlock - 1) / kBlock;
    double total = 0, sums[kRound];
    for (int64_t first = 0; first < blocks; first += kRound) {
      const int64_t count = std::min(kRound, blocks - first);
      invocation.pool.run((count + kBlocksPerItem - 1) / kBlocksPerItem, [&](int64_t item, int) {
        for (int64_t i = item * kBlocksPerItem, end = std::min(i + kBlocksPerItem, count); i < end; ++i) {
          const int64_t begin = (first + i) * kBlock, size = std::min(kBlock, n_ - begin);
          if (half_) {
            float block[kBlock];
            loops_.widen(invocation.operand<uint16_t>(plan::kOperand<Call, "source">) + begin, block, size);
            sums[i] = loops().squareSum(block, size);
          } else {
            sums[i] = loops().squareSum(invocation.operand<float>(plan::kOperand<Call, "source">) + begin, size);
          }
        }
      });
      for (int64_t i = 0; i < count; ++i) total += sums[i];
    }
    *invocation.operand<double>(plan::kOperand<Call, "destination">) = total;
    return Status();
  }

 private:
  int64_t n_;
  bool half_;
  const simd::Halves& loops_;
};

class GradientNorm : public LibraryFunction {
 public:
  using Call = plan::GradientNormCall;

  explicit GradientNorm(const Call& call)
      : ranks_(call.ranks),
        buckets_(call.buckets),
        maxNorm_(plan::operandIndex<"max_norm">(call)),
        lossScale_(plan::operandIndex<"loss_scale">(call)),
        loss_(plan::operandIndex<"loss">(call)) {}

  Status run(const Invocation& invocation) const override {
    const double* partials = invocation.operand<double>(plan::kOperand<Call, "partials">);
    double total = 0;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      double sum = 0;
      for (int64_t bucket = 0; bucket < buckets_; ++bucket) sum += partials[rank * buckets_ + bucket];
      total += sum;
    }
    const float* scaled = invocation.operand<float>(lossScale_);
    const double lossScale = scaled ? double(*scaled) : 1, norm = std::sqrt(total) / lossScale;
    *invocation.operand<double>(plan::kOperand<Call, "norm">) = norm;
    float* scalars = invocation.operand<float>(plan::kOperand<Call, "scalars">);
    double scale = 1;
    if (const float* maximum = invocation.operand<float>(maxNorm_)) {
      // torch.nn.utils.clip_grad_norm_; a norm that is NaN gives a scale that is NaN.
      scale = double(*maximum) / (norm + 1e-6);
      if (scale > 1) scale = 1;
    }
    scalars[0] = static_cast<float>(scale / lossScale);
    const float* loss = invocation.operand<float>(loss_);
    scalars[1] = std::isfinite(norm) && (!loss || std::isfinite(*loss)) ? 1.0f : 0.0f;
    return Status();
  }

 private:
  int64_t ranks_, buckets_;
  int maxNorm_, lossScale_, loss_;  // operands, if gradients are clipped, the loss is scaled, and it is judged
};

class Zero : public LibraryFunction {
 public:
  using Call = plan::ZeroCall;

  explicit Zero(const CallSite& site) : bytes_(site.operandBytes(plan::kOperand<Call, "destination">)) {}

  Status run(const Invocation& invocation) const override {
    constexpr int64_t kItem = 1 << 20;
    std::byte* destination = invocation.operand<std::byte>(plan::kOperand<Call, "destination">);
    invocation.pool.run((bytes_ + kItem - 1) / kItem, [&](int64_t item, int) {
      std::memset(destination + item * kItem, 0, std::min(kItem, bytes_ - item * kItem));
    });
    return Status();
  }

 private:
  int64_t bytes_;
};

}  // namespace

Function makeFunction(const plan::SumPartialsCall& call, const CallSite&) {
  return std::make_unique<SumPartials>(call);
}

Function makeFunction(const plan::CumSumCall& call, const CallSite&) {
  return std::make_unique<CumSum>(call);
}

Function makeFunction(const plan::SquareSumCall& call, const CallSite&) {
  return std::make_unique<SquareSum>(call);
}

Function makeFunction(const plan::GradientNormCall& call, const CallSite&) {
  return std::make_unique<GradientNorm>(call);
}

Function makeFunction(const plan::ZeroCall&, const CallSite& site) {
  return std::make_unique<Zero>(site);
}

}  // namespace sheaf::cpu
