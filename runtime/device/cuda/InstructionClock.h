// When instructions ran, for traces: two events around each, asked for later.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/device/Device.h"
#include "runtime/device/cuda/Resources.h"

namespace sheaf::cuda {

class InstructionClock {
 public:
  explicit InstructionClock(int64_t rank) : rank_(rank) {}
  // Around an instruction's work on its stream. All are reported to step->onInstruction.
  Status begin(cudaStream_t stream, const plan::Instruction& instruction, std::shared_ptr<const StepValues> step);
  Status end(cudaStream_t stream);
  // Reports what has ended, in the order of issue; with `all` waits for the rest.
  Status report(bool all);

 private:
  struct Timed {
    const plan::Instruction* instruction;
    std::shared_ptr<const StepValues> step;
    Event begin, end;
  };
  Expected<Event> event();
  Status anchor(cudaStream_t stream);

  const int64_t rank_;
  std::deque<Timed> timed_;
  std::vector<Event> free_;
  // A moment on both clocks. It moves on, because times since an event are floats.
  Event anchor_;
  std::chrono::steady_clock::time_point anchorTime_;
};

}  // namespace sheaf::cuda
