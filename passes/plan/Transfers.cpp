#include "passes/plan/Transfers.h"

#include <algorithm>

namespace sheaf::plan_ir {
namespace {

std::string_view streamNameOf(plan::Transfer::Kind kind) {
  switch (kind) {
    case plan::Transfer::TO_DEVICE:
      return "to_device";
    case plan::Transfer::TO_HOST:
      return "to_host";
    case plan::Transfer::READ_FILE:
      return "file_in";
    default:
      return "file_out";
  }
}

}  // namespace

uint32_t streamNamed(plan::Plan& plan, std::string_view name) {
  const auto& streams = plan.streams();
  const auto index = static_cast<uint32_t>(std::find(streams.begin(), streams.end(), name) - streams.begin());
  if (index == static_cast<uint32_t>(streams.size())) plan.add_streams(std::string(name));
  return index;
}

plan::Transfer::Kind transferKind(plan::Buffer::Space home, bool fetch) {
  if (home == plan::Buffer::HOST) return fetch ? plan::Transfer::TO_DEVICE : plan::Transfer::TO_HOST;
  return fetch ? plan::Transfer::READ_FILE : plan::Transfer::WRITE_FILE;
}

plan::Instruction transfer(plan::Plan& plan, plan::Transfer::Kind kind, uint32_t source, uint32_t destination,
                           const plan::Operand* range) {
  const plan::Buffer &from = plan.buffers(static_cast<int>(source)), &to = plan.buffers(static_cast<int>(destination));
  plan::Instruction instruction;
  instruction.set_stream(streamNamed(plan, streamNameOf(kind)));
  instruction.set_label((from.space() > to.space() ? from : to).name());
  instruction.mutable_transfer()->set_kind(kind);
  plan::Operand operand;
  operand.set_bytes(from.bytes());
  if (range) operand = *range;
  operand.set_buffer(source);
  operand.set_access(plan::READ);
  *instruction.add_operands() = operand;
  operand.set_buffer(destination);
  operand.set_access(plan::WRITE);
  *instruction.add_operands() = operand;
  return instruction;
}

}  // namespace sheaf::plan_ir
