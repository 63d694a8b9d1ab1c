// What a plan must be before anything acts on it: indices in range, sizes that do not overflow, and every byte that an
// instruction declares to access in the arena. What kernels' machine code does is beyond it: docs/proof.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Limits of a plan.
inline constexpr uint32_t kMaxThreads = 1024, kMaxStreams = 64, kMaxCommunicators = 64, kMaxEvents = 1 << 22;
// The maximum length of a path in a plan.
inline constexpr size_t kMaxPathBytes = 4096;

// Checks structure and bounds: indices, sizes, alignment, operands inside buffers inside the arena for every rank,
// storage of parameters and states, collectives, library calls, declared memory. The error names the section, the
// instruction's number, stream and label, and the buffer.
Status verifyPlan(const Plan& plan);

// A plan's file, verified: enough for programs that only read the plan. Errors name the file.
Expected<std::unique_ptr<Plan>> readVerifiedPlan(const std::string& path);

// Calls check(section, index, instruction) for every instruction of every section, up to the first error, which it
// returns.
template <typename Check>
Status checkInstructions(const Plan& plan, Check check) {
  for (auto [section, list] : sectionsOf(plan))
    for (int i = 0; i < list->size(); ++i) SHEAF_RETURN_IF_ERROR(check(section, i, list->Get(i)));
  return {};
}

// Returns an entry of a table as errors name it: "kernel 3 'update all'".
std::string named(const char* kind, int index, const std::string& name);

// True if the operand lies in its buffer, which the plan must have, on every rank.
bool liesInBuffer(const Plan& plan, const Operand& operand);

// verifyPlan's part for the lists of instructions; the tables must have been verified.
Status verifyInstructions(const Plan& plan);

// verifyPlan's part for kernels and their images, one for each target.
Status verifyKernels(const Plan& plan);

// Whether a launch, whose operands have been found in the arena, does with each what its kernel does, and gives one
// address only to operands for which the kernel allows that. The error names kernel and operand.
Status checkLaunch(const Plan& plan, const Instruction& launch);

}  // namespace sheaf::plan
