// Walks the instructions of a plan from the last to the first and keeps which bytes of each buffer are still to be
// read.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/LiveRanges.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// An operand that differs by rank is taken as rank 0's: the buffers of all ranks live equally long.
class Liveness {
 public:
  // The plan must outlive the object.
  explicit Liveness(const Plan& plan) : plan_(plan), live_(static_cast<size_t>(plan.buffers_size())) {}

  struct Touched {
    uint32_t buffer;
    bool first;  // nothing is read of what it held before the instruction
    bool last;   // nothing is read of what it holds after the instruction
  };

  // Takes the instruction that runs before the one of the call before. Returns the buffers that it touches, in
  // ascending order, without those that are persistent.
  std::vector<Touched> walk(const Instruction& instruction);

  // Returns true if bytes of the buffer are still to be read before the instruction of the latest call.
  bool isAlive(uint32_t buffer) const { return !live_[buffer].empty(); }

 private:
  const Plan& plan_;
  std::vector<LiveRanges> live_;  // by buffer
};

}  // namespace sheaf::plan
