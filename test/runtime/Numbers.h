// Reproducible numbers for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sheaf::testing {

// Reproducible values in [-1, 1].
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 2862933555777941757u + 3037000493u) {}
  uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float real() { return static_cast<float>(static_cast<int64_t>(bits() >> 40) - (1 << 23)) / (1 << 23); }
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }
  std::vector<float> reals(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = real();
    return values;
  }

 private:
  uint64_t state_;
};

}  // namespace sheaf::testing
