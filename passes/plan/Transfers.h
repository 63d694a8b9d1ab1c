// How passes move bytes between spaces.
#pragma once

#include <string_view>

#include "runtime/plan/Types.h"

namespace sheaf::plan_ir {

// The index of the plan's stream of that name, which is appended if there is none.
uint32_t streamNamed(plan::Plan& plan, std::string_view name);

// The stream of launches on the host.
inline constexpr std::string_view kHostComputeStream = "host_compute";

// The kind of the transfer from a home in that space to an image of it (fetch), or back.
plan::Transfer::Kind transferKind(plan::Buffer::Space home, bool fetch);

// An instruction that moves all bytes of a buffer to its image, or those of `range`.
plan::Instruction transfer(plan::Plan& plan, plan::Transfer::Kind kind, uint32_t source, uint32_t destination,
                           const plan::Operand* range = nullptr);

// Where an instruction's operands lie: HOST for launches on the host, else DEVICE. Of transfers: see their kind.
inline plan::Buffer::Space executorOf(const plan::Instruction& instruction) {
  return plan::isOnHost(instruction) ? plan::Buffer::HOST : plan::Buffer::DEVICE;
}

}  // namespace sheaf::plan_ir
