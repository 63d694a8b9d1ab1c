// The proof that a plan cannot race, deadlock, read what was never written, or compute something else than it was
// compiled to, in any number of steps. docs/proof.md has the argument.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Proves, for a plan that verifyPlan() has accepted:
//   race-free      any two accesses to the same bytes, one of them a write, are ordered by happens-before
//   apart          no instruction writes a result on its own operands, but in place where it may
//   initialised    every byte read was written before through the same buffer, or is state, weight or constant
//   deadlock-free  every wait has a record to wait for somewhere, and every communicator has one total order
//   stage-true     a rank holds what its stage says, and between steps no more than its stage allows
//   faithful       every step computes the same, and what tables, kernels and instructions say is what was compiled,
//                  as far as the plan carries digests (Digests.h)
// The error names both instructions, their streams, the bytes and the order that is missing. Time is linear in the
// number of instructions and of the pieces into which their operands cut the arena.
Status provePlan(const Plan& plan);

// Whether a plan must carry all digests. Those that it carries must be right in any case.
enum class Undigested { kRefused, kAccepted };

// A plan's file, verified and proved: what every plan must pass before it runs. Errors name the file.
Expected<std::unique_ptr<Plan>> readProvedPlan(const std::string& path, Undigested undigested = Undigested::kRefused);

}  // namespace sheaf::plan
