// What a plan computes, whatever the order, the streams and the memory in which it does so.
#pragma once

#include <cstdint>

#include "runtime/plan/Unrolled.h"

namespace sheaf::plan {

// A digest of the values of all outputs and of the state that is left for the host, as terms over inputs, initial state
// and constants: which operation made them from which bytes of which other values. The instructions are followed in
// issue order, every buffer in a space of its own. So the digest stays the same when streams, events and offsets of
// buffers change, or the order of instructions that do not depend on each other; and it changes when an instruction is
// missing, stands on the other side of one that it depends on, or accesses other bytes. Never 0. For plans that
// verifyPlan() has accepted.
uint64_t dataflowDigest(const Unrolled& steps);
uint64_t dataflowDigest(const Plan& plan);

}  // namespace sheaf::plan
