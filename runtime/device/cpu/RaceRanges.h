// ThreadSanitizer's view of instructions. Kernels and oneDNN are not instrumented, so in its build the ranges of bytes
// that an instruction accesses are declared, and a race between two instructions is reported at run time, whatever the
// plan's verifier thought of it. In other builds nothing happens here.
#pragma once

#include <cstddef>
#include <functional>

#include "runtime/plan/plan.pb.h"

namespace sheaf::cpu {

#ifdef __SANITIZE_THREAD__
// Declares what the instruction reads and writes in its own rank's arena, where its operands lie at these addresses.
void declareAccesses(const plan::Instruction& instruction, std::byte* const* operands);
// Declares a read of a peer's memory.
std::function<void(const void*, size_t)> peerReadListener();
#else
inline void declareAccesses(const plan::Instruction&, std::byte* const*) {}
inline std::nullptr_t peerReadListener() {
  return nullptr;
}
#endif

}  // namespace sheaf::cpu
