// Happens-before over a sequence of instructions in issue order: program order of each stream, plus record -> wait.
// Vector clocks, one entry per stream (Mattern 1989). MLIR-free: the compiler's passes and the plan's verifier use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sheaf::plan {

struct IssuedInstruction {
  enum Kind { kOther, kRecord, kWait };
  uint32_t stream = 0;
  Kind kind = kOther;
  uint32_t event = 0;  // of a record or a wait
};

class HappensBefore {
 public:
  // Streams and events must be less than the counts given.
  HappensBefore(std::span<const IssuedInstruction> sequence, uint32_t streams, uint32_t events);

  // Whether instruction a is complete before instruction b starts. A wait is complete when its event is.
  bool ordered(size_t a, size_t b) const { return position_[a] <= clock(b)[sequence_[a].stream] && a != b; }

  // Whether a wait waits for something that its stream does not already know to be complete.
  bool needed(size_t wait) const { return needed_[wait]; }

 private:
  std::span<const uint32_t> clock(size_t i) const { return {clocks_.data() + i * streams_, streams_}; }

  std::span<const IssuedInstruction> sequence_;
  uint32_t streams_;
  std::vector<uint32_t> position_;  // 1-based position of an instruction in its stream
  std::vector<uint32_t> clocks_;    // per instruction and stream: how far that stream is known to be when it starts
  std::vector<bool> needed_;
};

}  // namespace sheaf::plan
