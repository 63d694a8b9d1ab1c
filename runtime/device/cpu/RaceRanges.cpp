#include "runtime/device/cpu/RaceRanges.h"

#ifdef __SANITIZE_THREAD__

extern "C" void __tsan_read_range(void* address, long bytes);
extern "C" void __tsan_write_range(void* address, long bytes);

namespace sheaf::cpu {
namespace {

void declareRange(const plan::Operand& operand, std::byte* address, bool write) {
  if (operand.bytes() == 0) return;
  (write ? __tsan_write_range : __tsan_read_range)(address, static_cast<long>(operand.bytes()));
}

}  // namespace

void declareAccess(const plan::Operand& operand, std::byte* address) {
  declareRange(operand, address, operand.access() != plan::READ);
}

void declareAccesses(const plan::Instruction& instruction, const AddressOf& address) {
  auto declare = [&](const plan::Operand& operand, bool write) { declareRange(operand, address(operand), write); };
  auto declareAll = [&](const auto& operands) {
    for (const plan::Operand& operand : operands) declareAccess(operand, address(operand));
  };
  switch (instruction.kind_case()) {
    case plan::Instruction::kKernel:
      return declareAll(instruction.kernel().operands());
    case plan::Instruction::kCall:
      return declareAll(instruction.call().operands());
    case plan::Instruction::kCollective:
      // In place, source and destination overlap: both are the same thread's, so it is not a race.
      declare(instruction.collective().source(), false);
      return declare(instruction.collective().destination(), true);
    case plan::Instruction::kInput:
      return declare(instruction.input().destination(), true);
    case plan::Instruction::kScalars:
      return declare(instruction.scalars().destination(), true);
    case plan::Instruction::kOutput:
      return declare(instruction.output().source(), false);
    default:
      return;
  }
}

std::function<void(const void*, size_t)> peerReadListener() {
  return [](const void* address, size_t bytes) {
    __tsan_read_range(const_cast<void*>(address), static_cast<long>(bytes));
  };
}

}  // namespace sheaf::cpu

#endif
