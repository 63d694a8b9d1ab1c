// Plans that move bytes between the spaces of a rank, for tests.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {

inline std::vector<std::byte> numbers(size_t count, unsigned first) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + i * 7 + i / 251);
  return bytes;
}

// A buffer of a space, at its beginning.
inline uint32_t bufferIn(PlanBuilder& builder, plan::Buffer::Space space, uint64_t bytes, uint64_t offset = 0) {
  plan::Buffer& buffer = *builder.plan.add_buffers();
  buffer.set_space(space);
  buffer.set_offset(offset);
  buffer.set_bytes(bytes);
  return static_cast<uint32_t>(builder.plan.buffers_size() - 1);
}

// All bytes, or `bytes` of them from `begin` on.
inline void transfer(PlanBuilder& builder, plan::Transfer::Kind kind, uint32_t from, uint32_t to, uint64_t begin = 0,
                     uint64_t bytes = 0, uint32_t stream = 2) {
  plan::Instruction& transfer =
      builder.instruction("move", stream, {builder.operand(from, plan::READ), builder.operand(to, plan::WRITE)});
  transfer.mutable_transfer()->set_kind(kind);
  for (plan::Operand& operand : *transfer.mutable_operands()) {
    operand.set_offset(begin);
    if (bytes > 0) operand.set_bytes(bytes);
  }
}

}  // namespace sheaf::testing
