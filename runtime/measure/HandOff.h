// What an instruction takes in a step, where threads wait for each other, beyond what it takes by itself.
#pragma once

#include <functional>

#include "runtime/measure/InstructionTimer.h"

namespace sheaf::measure {

// The time of a collective depends on when each rank arrives, and that of an instruction that waits for another
// thread's on when it wakes: the quantile of the repetitions that counts, instead of the fastest.
inline constexpr double kTypical = 0.25;

// Matrix products alone, and products that alternate with instructions of another stream, each waiting for the other.
class HandOff {
 public:
  // Makes the groups of the timer. `add` adds an instruction to the stream.
  HandOff(InstructionTimer& timer, uint32_t stream, const std::function<void()>& add);
  // Of such an instruction, waiting included. The timer's device is open.
  Expected<double> seconds() const;

 private:
  InstructionTimer& timer_;
  size_t computing_ = 0, handing_ = 0;  // groups
};

}  // namespace sheaf::measure
