// In which order a block's warps run, and the threads of a warp: kernels must not depend on it. Every block of a
// stream takes another one, unless SHEAF_EMULATED_ORDER names one of them or the seed of a random one; so a run can be
// repeated.
#pragma once

#include <cstdint>
#include <vector>

namespace sheaf::emulation {

class WarpOrder {
 public:
  WarpOrder();
  void nextBlock();
  // 0 to count - 1 as they come now. Valid until the next call with the same buffer.
  const std::vector<int>& arrange(int count, std::vector<int>& buffer);
  // Whether a warp that has met at its own barrier goes on at once, and does not wait for the others' turns.
  bool runsAhead();

 private:
  enum Kind { kTurns, kAhead, kReversed, kRandom, kKinds };
  uint64_t random();

  Kind kind_ = kTurns;
  bool fixed_ = false;
  uint64_t state_ = 0;
};

}  // namespace sheaf::emulation
