// train.dropout and train.random_uniform: an element's random word is a function of (seed, step, node, global element
// index) alone.
#include <algorithm>
#include <cmath>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

class Dropout : public LibraryFunction {
 public:
  using Call = plan::DropoutCall;

  Dropout(const Call& call, const CallSite& site)
      : count_(call.count), node_(static_cast<uint32_t>(call.node)), seed_(static_cast<uint64_t>(site.seed)) {
    const double ratio = call.ratio;
    // Kept iff word * 2^-32 >= ratio, which is word >= ceil(ratio * 2^32): the product is exact.
    threshold_ = static_cast<uint64_t>(std::ceil(ratio * 4294967296.0));
    scale_ = ratio < 1 ? static_cast<float>(1 / (1 - ratio)) : 0.0f;
  }

  Status run(const Invocation& invocation) const override {
    const float* source = invocation.operand<float>(plan::kOperand<Call, "source">);
    float* destination = invocation.operand<float>(plan::kOperand<Call, "destination">);
    constexpr int64_t kItem = 16384;
    const uint64_t first = static_cast<uint64_t>(invocation.piece) * static_cast<uint64_t>(count_);
    const simd::Philox philox{seed_, node_, static_cast<uint32_t>(invocation.step)};
    invocation.pool.run((count_ + kItem - 1) / kItem, [&](int64_t item, int) {
      const int64_t begin = item * kItem;
      loops().dropout(source + begin, destination + begin, std::min(kItem, count_ - begin), first + begin, philox,
                      threshold_, scale_);
    });
    return Status();
  }

 private:
  int64_t count_;
  uint32_t node_;
  uint64_t seed_, threshold_;
  float scale_;
};

class RandomUniform : public LibraryFunction {
 public:
  using Call = plan::RandomUniformCall;

  RandomUniform(const Call& call, const CallSite& site)
      : count_(call.count), node_(static_cast<uint32_t>(call.node)), seed_(static_cast<uint64_t>(site.seed)) {}

  Status run(const Invocation& invocation) const override {
    float* destination = invocation.operand<float>(plan::kOperand<Call, "destination">);
    constexpr int64_t kItem = 16384;
    const uint64_t first = static_cast<uint64_t>(invocation.piece) * static_cast<uint64_t>(count_);
    const simd::Philox philox{seed_, node_, static_cast<uint32_t>(invocation.step)};
    invocation.pool.run((count_ + kItem - 1) / kItem, [&](int64_t item, int) {
      const int64_t begin = item * kItem;
      loops().uniform(destination + begin, std::min(kItem, count_ - begin), first + begin, philox);
    });
    return Status();
  }

 private:
  int64_t count_;
  uint32_t node_;
  uint64_t seed_;
};

}  // namespace

Function makeFunction(const plan::RandomUniformCall& call, const CallSite& site) {
  return std::make_unique<RandomUniform>(call, site);
}

Function makeFunction(const plan::DropoutCall& call, const CallSite& site) {
  return std::make_unique<Dropout>(call, site);
}

}  // namespace sheaf::cpu
