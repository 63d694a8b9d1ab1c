#include "runtime/device/cuda/InstructionClock.h"

namespace sheaf::cuda {

Expected<Event> InstructionClock::event() {
  if (free_.empty()) return makeEvent(true);
  Event event = std::move(free_.back());
  free_.pop_back();
  return event;
}

Status InstructionClock::anchor(cudaStream_t stream) {
  Expected<Event> made = event();
  if (!made.ok()) return made.status();
  anchor_ = std::move(*made);
  SHEAF_RETURN_IF_ERROR(check(cudaEventRecord(anchor_.get(), stream), "cannot record an event"));
  SHEAF_RETURN_IF_ERROR(check(cudaEventSynchronize(anchor_.get()), "cannot wait for an event"));
  anchorTime_ = std::chrono::steady_clock::now();
  return {};
}

Status InstructionClock::begin(cudaStream_t stream, const plan::Instruction& instruction,
                               std::shared_ptr<const StepValues> step) {
  if (!anchor_) SHEAF_RETURN_IF_ERROR(anchor(stream));
  Expected<Event> begin = event(), end = event();
  if (!begin.ok()) return begin.status();
  if (!end.ok()) return end.status();
  timed_.push_back({&instruction, std::move(step), std::move(*begin), std::move(*end)});
  return check(cudaEventRecord(timed_.back().begin.get(), stream), "cannot record an event");
}

Status InstructionClock::end(cudaStream_t stream) {
  return check(cudaEventRecord(timed_.back().end.get(), stream), "cannot record an event");
}

Status InstructionClock::report(bool all) {
  while (!timed_.empty()) {
    Timed& first = timed_.front();
    cudaError_t state = all ? cudaEventSynchronize(first.end.get()) : cudaEventQuery(first.end.get());
    if (state == cudaErrorNotReady) return {};
    SHEAF_RETURN_IF_ERROR(check(state, "cannot wait for an event"));
    float toBegin = 0, toEnd = 0;
    SHEAF_RETURN_IF_ERROR(
        check(cudaEventElapsedTime(&toBegin, anchor_.get(), first.begin.get()), "cannot read a time"));
    SHEAF_RETURN_IF_ERROR(
        check(cudaEventElapsedTime(&toEnd, first.begin.get(), first.end.get()), "cannot read a time"));
    auto later = [](std::chrono::steady_clock::time_point time, float milliseconds) {
      return time + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                        std::chrono::duration<float, std::milli>(milliseconds));
    };
    auto begin = later(anchorTime_, toBegin);
    first.step->onInstruction(rank_, *first.instruction, begin, later(begin, toEnd));
    free_.push_back(std::move(first.end));
    free_.push_back(std::move(anchor_));
    anchor_ = std::move(first.begin);
    anchorTime_ = begin;
    timed_.pop_front();
  }
  return {};
}

}  // namespace sheaf::cuda
