// A pseudo-random permutation of [0, size) that stores nothing: a Feistel network on the next even number of bits,
// walked until it lands inside.
#pragma once

#include <cstdint>

namespace sheaf::io {

class Permutation {
 public:
  // The permutation is a function of size and key alone.
  Permutation(uint64_t size, uint64_t key);
  uint64_t operator()(uint64_t index) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t size_, mask_;
  int halfBits_;
  uint64_t keys_[kRounds];
};

}  // namespace sheaf::io
