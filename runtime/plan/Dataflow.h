// What a plan computes, whatever the order, the streams and the memory in which it does so.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

struct Dataflow {
  // Digests of the values of all outputs and of the state that the host finds after a run of one step, as terms over
  // inputs, the state before, and constants: which operation made them from which bytes of which other values.
  // Invariant under streams, events, offsets of buffers and the order of independent instructions; changed by an
  // instruction that is missing, stands on the other side of one that it depends on, or accesses other bytes.
  uint64_t digest = 0;  // never 0
  // Whether every later step computes what the first one does: the induction of docs/proof.md. The error names the
  // buffer, the bytes, who reads them, and the two instructions that leave different values there.
  Status induction;
};

// Executes prologue, body, epilogue, host, prologue on symbolic values, in issue order, every buffer in an address
// space of its own. For plans that verifyPlan() has accepted; the result means something if checkContents() accepts the
// plan, too.
Dataflow followDataflow(const Plan& plan);

}  // namespace sheaf::plan
