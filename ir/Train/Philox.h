// The random numbers of train.dropout and train.random_uniform: Philox 4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011), counter-based, so that any element's number is known without drawing the
// others.
//
// Layout, which every implementation of the op follows:
//   key      (k0, k1)         = (seed's low 32 bits, seed's high 32 bits)
//   counter  (c0, c1, c2, c3) = (block's low 32 bits, block's high 32 bits, node, step)
//   block    = e / 4, e the global element index: row-major in the tensor of the *global* batch (a rank whose rows
//   start
//              at row r of the batch adds r * elements per row to its local index)
//   word     = e % 4 of the four output words
//   keep     if word / 2^32 >= ratio, that is, if word >= ratio * 2^32 compared as real numbers
//   node     the op's `node` attribute, step the 1-based step of the run; both modulo 2^32
// A kept element is multiplied by 1 / (1 - ratio). A uniform number is (word / 2^9 rounded down, plus 1/2) / 2^23.
#pragma once

#include <array>
#include <cstdint>

namespace sheaf::train {

inline std::array<uint32_t, 4> philox(uint64_t seed, uint64_t block, uint32_t node, uint32_t step) {
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  std::array<uint32_t, 4> c{uint32_t(block), uint32_t(block >> 32), node, step};
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t(0xD2511F53) * c[0], p1 = uint64_t(0xCD9E8D57) * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k1, uint32_t(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

}  // namespace sheaf::train
