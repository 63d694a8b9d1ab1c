// ThreadSanitizer's view of instructions. Kernels and oneDNN are not instrumented, so in its build the ranges of bytes
// that an instruction accesses are declared, and a race between two instructions is reported at run time, whatever the
// plan's verifier thought of it. In other builds nothing happens here.
#pragma once

#include <cstddef>
#include <functional>

#include "runtime/plan/plan.pb.h"

namespace sheaf::cpu {

using AddressOf = std::function<std::byte*(const plan::Operand&)>;

#ifdef __SANITIZE_THREAD__
// Declares what the instruction reads and writes in its own rank's arena.
void declareAccesses(const plan::Instruction& instruction, const AddressOf& address);
// Declares one of them, which lies at the address.
void declareAccess(const plan::Operand& operand, std::byte* address);
// Declares a read of a peer's memory.
std::function<void(const void*, size_t)> peerReadListener();
#else
template <typename Address>
void declareAccesses(const plan::Instruction&, const Address&) {}
inline void declareAccess(const plan::Operand&, std::byte*) {}
inline std::nullptr_t peerReadListener() {
  return nullptr;
}
#endif

}  // namespace sheaf::cpu
