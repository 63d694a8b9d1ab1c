// train.dropout and train.random_uniform: an element's random word is a function of (seed, step, node, global element
// index) alone.
#include <algorithm>
#include <cmath>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

class Random : public LibraryFunction {
 protected:
  Random(const plan::RandomShape& shape, const CallSite& site)
      : shape_(shape), seed_(static_cast<uint64_t>(site.seed)) {}

  // Calls draw(begin, count, first, philox) for ranges of elements, of which the first has the global index `first`.
  template <typename Draw>
  void forRanges(const Invocation& invocation, Draw draw) const {
    constexpr int64_t kItem = 16384;
    const simd::Philox philox{seed_, static_cast<uint32_t>(shape_.node), static_cast<uint32_t>(invocation.step)};
    const int64_t run = shape_.run();
    invocation.pool.run((shape_.count + kItem - 1) / kItem, [&](int64_t item, int) {
      const int64_t end = std::min((item + 1) * kItem, shape_.count);
      for (int64_t begin = item * kItem, size; begin < end; begin += size) {
        const int64_t block = begin / run, within = begin % run;
        size = std::min(end - begin, run - within);
        const uint64_t first = shape_.firstIndex(block, invocation.piece) + static_cast<uint64_t>(within);
        draw(begin, size, first, philox);
      }
    });
  }

 private:
  plan::RandomShape shape_;
  uint64_t seed_;
};

class Dropout : public Random {
 public:
  using Call = plan::DropoutCall;

  Dropout(const Call& call, const CallSite& site) : Random(call, site) {
    const double ratio = call.ratio;
    // Kept iff word * 2^-32 >= ratio, which is word >= ceil(ratio * 2^32): the product is exact.
    threshold_ = static_cast<uint64_t>(std::ceil(ratio * 4294967296.0));
    scale_ = ratio < 1 ? static_cast<float>(1 / (1 - ratio)) : 0.0f;
  }

  Status run(const Invocation& invocation) const override {
    const float* source = invocation.operand<float>(plan::kOperand<Call, "source">);
    float* destination = invocation.operand<float>(plan::kOperand<Call, "destination">);
    forRanges(invocation, [&](int64_t begin, int64_t count, uint64_t first, simd::Philox philox) {
      loops().dropout(source + begin, destination + begin, count, first, philox, threshold_, scale_);
    });
    return Status();
  }

 private:
  uint64_t threshold_;
  float scale_;
};

class RandomUniform : public Random {
 public:
  using Call = plan::RandomUniformCall;

  RandomUniform(const Call& call, const CallSite& site) : Random(call, site) {}

  Status run(const Invocation& invocation) const override {
    float* destination = invocation.operand<float>(plan::kOperand<Call, "destination">);
    forRanges(invocation, [&](int64_t begin, int64_t count, uint64_t first, simd::Philox philox) {
      loops().uniform(destination + begin, count, first, philox);
    });
    return Status();
  }
};

}  // namespace

Function makeFunction(const plan::RandomUniformCall& call, const CallSite& site) {
  return std::make_unique<RandomUniform>(call, site);
}

Function makeFunction(const plan::DropoutCall& call, const CallSite& site) {
  return std::make_unique<Dropout>(call, site);
}

}  // namespace sheaf::cpu
