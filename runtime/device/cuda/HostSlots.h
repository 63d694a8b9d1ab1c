// Pinned memory through which the host and a step exchange values. What the host fills for a step must stay as it is
// until the device has copied it, while the host goes on to the next step: so there are two slots of everything, used
// alternately.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/device/cuda/Resources.h"

namespace sheaf::cuda {

inline constexpr int kSlots = 2;  // steps in flight: see StepLedger

// One value's slots.
class HostSlots {
 public:
  static Expected<HostSlots> create(size_t bytes) {
    HostSlots slots;
    for (Slot& slot : slots.slots_) {
      Expected<PinnedMemory> memory = makePinned(bytes);
      if (!memory.ok()) return memory.status();
      Expected<Event> event = makeEvent();
      if (!event.ok()) return event.status();
      slot = {std::move(*memory), std::move(*event), false};
    }
    return slots;
  }

  // The slot's memory; what used it last has been waited for.
  Expected<std::byte*> acquire(int slot) {
    Slot& mine = slots_[slot];
    if (mine.used)
      SHEAF_RETURN_IF_ERROR(check(cudaEventSynchronize(mine.lastUse.get()), "cannot wait for a copy from the host"));
    mine.used = false;
    return mine.memory.get();
  }
  // What uses the slot has been appended to the stream.
  Status release(int slot, cudaStream_t stream) {
    slots_[slot].used = true;
    return check(cudaEventRecord(slots_[slot].lastUse.get(), stream), "cannot record an event");
  }
  std::byte* memory(int slot) const { return slots_[slot].memory.get(); }

 private:
  struct Slot {
    PinnedMemory memory;
    Event lastUse;
    bool used = false;
  };
  Slot slots_[kSlots];
};

}  // namespace sheaf::cuda
