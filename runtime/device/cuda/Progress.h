// How far each stream of a rank has come, written by the GPU into memory that the host reads without asking it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/cuda/Resources.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

class Progress {
 public:
  static Expected<std::unique_ptr<Progress>> create(const plan::Plan& plan);
  // Notes, when the stream comes here, that it is at this instruction (its number among all of the plan's).
  Status mark(uint32_t stream, uint32_t number, cudaStream_t on);
  // Whether something was issued that the host has not waited for.
  void setBusy(bool busy) { busy_.store(busy, std::memory_order_relaxed); }
  bool busy() const { return busy_.load(std::memory_order_relaxed); }
  // Changes whenever a stream comes to another mark.
  uint64_t count() const;
  // "body instruction 12 (all_gather 'h.0' on stream communication)" of each stream.
  std::string text() const;

 private:
  struct Place {
    uint32_t number;  // 1 + the instruction's; 0: none yet
    uint32_t marks;
  };
  explicit Progress(const plan::Plan& plan) : plan_(plan) {}
  const volatile Place* places() const { return reinterpret_cast<const volatile Place*>(memory_.get()); }

  const plan::Plan& plan_;
  PinnedMemory memory_;  // a Place for each stream
  std::atomic<bool> busy_ = false;
};

}  // namespace sheaf::cuda
