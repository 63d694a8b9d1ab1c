#include "runtime/io/Permutation.h"

#include <bit>

#include "runtime/base/Hash.h"

namespace sheaf::io {

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size) {
  int bits = size > 1 ? std::bit_width(size - 1) : 1;
  halfBits_ = (bits + 1) / 2;
  mask_ = (uint64_t{1} << halfBits_) - 1;
  for (int i = 0; i < kRounds; ++i) keys_[i] = mixBits(key + static_cast<uint64_t>(i) * 0x632be59bd9b4e019u);
}

uint64_t Permutation::operator()(uint64_t index) const {
  // The network permutes a range less than four times as large as `size`, so this walks fewer than four steps on
  // average.
  do {
    uint64_t left = index >> halfBits_, right = index & mask_;
    for (uint64_t key : keys_) {
      uint64_t next = left ^ (mixBits(right ^ key) & mask_);
      left = right;
      right = next;
    }
    index = left << halfBits_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace sheaf::io
