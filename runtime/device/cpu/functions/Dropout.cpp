// train.dropout: the mask is a function of (seed, step, node, global element index) alone.
#include <algorithm>
#include <cmath>

#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/simd/Loops.h"
#include "runtime/plan/Library.h"

namespace sheaf::cpu {
namespace {

class Dropout : public LibraryFunction {
 public:
  Dropout(const plan::LibraryCall& call, int64_t seed)
      : count_(plan::integer(call, "count")),
        node_(static_cast<uint32_t>(plan::integer(call, "node"))),
        seed_(static_cast<uint64_t>(seed)) {
    const double ratio = plan::real(call, "ratio");
    // Kept iff word * 2^-32 >= ratio, which is word >= ceil(ratio * 2^32): the product is exact.
    threshold_ = static_cast<uint64_t>(std::ceil(ratio * 4294967296.0));
    scale_ = ratio < 1 ? static_cast<float>(1 / (1 - ratio)) : 0.0f;
  }

  Status run(const Invocation& invocation) const override {
    const float* source = invocation.operand<float>(0);
    float* destination = invocation.operand<float>(1);
    constexpr int64_t kItem = 16384;
    const uint64_t first = static_cast<uint64_t>(invocation.rank) * static_cast<uint64_t>(count_);
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

}  // namespace

std::unique_ptr<const LibraryFunction> makeDropout(const plan::LibraryCall& call, int64_t seed) {
  return std::make_unique<Dropout>(call, seed);
}

}  // namespace sheaf::cpu
