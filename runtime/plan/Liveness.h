// Finds which bytes of each buffer are live (a later instruction reads them), from the last instruction to the first.
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
    bool liveBefore;  // some of its bytes are live before the instruction
    bool liveAfter;   // and after it
  };

  // Each call takes the predecessor of the instruction of the call before. Returns the buffers that the instruction
  // touches, in ascending order, without those that are persistent.
  std::vector<Touched> visit(const Instruction& instruction);

  // Returns true if bytes of the buffer are live before the instruction of the latest call.
  bool isLive(uint32_t buffer) const { return !live_[buffer].empty(); }

 private:
  const Plan& plan_;
  std::vector<LiveRanges> live_;  // by buffer
};

}  // namespace sheaf::plan
