#include "runtime/device/cpu/RaceRanges.h"

#ifdef __SANITIZE_THREAD__

extern "C" void __tsan_read_range(void* address, long bytes);
extern "C" void __tsan_write_range(void* address, long bytes);

namespace sheaf::cpu {

void declareAccesses(const plan::Instruction& instruction, std::byte* const* operands) {
  // ThreadSanitizer sees the copy of a transfer itself, and operands in files have no address.
  if (instruction.has_transfer()) return;
  // In place, a collective's source and destination overlap: both are the same thread's, so it is not a race.
  for (const plan::Operand& operand : instruction.operands()) {
    std::byte* const address = *operands++;
    if (operand.bytes() == 0) continue;
    const long bytes = static_cast<long>(operand.bytes());
    (operand.access() == plan::READ ? __tsan_read_range : __tsan_write_range)(address, bytes);
  }
}

std::function<void(const void*, size_t)> peerReadListener() {
  return [](const void* address, size_t bytes) {
    __tsan_read_range(const_cast<void*>(address), static_cast<long>(bytes));
  };
}

}  // namespace sheaf::cpu

#endif
