// What a plan computes, whatever the order, the streams and the memory in which it does so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/Places.h"

namespace sheaf::plan {

struct Dataflow {
  // A digest of each value that a run of one step produces, as a term over inputs, step scalars, the state before and
  // constants: which operation made it from which bytes of which other values. Invariant under streams, events, offsets
  // of buffers, the order of independent instructions and of kernels, and under attributes of calls that are given
  // their default; changed by an instruction that is missing, is moved across one that it depends on, or accesses
  // other bytes, and by every hyperparameter but the learning rate. dataflowEntry() names the entries.
  std::vector<uint64_t> digests;
  // Whether every later step computes what the first one does: the induction of docs/proof.md. The error names the
  // buffer, the bytes, who reads them, and the two instructions that leave different values there.
  Status induction;
};

// Executes the evaluation, then prologue, body, epilogue, host, prologue on symbolic values, in issue order, on all
// ranks at once, every buffer in an address space of its own. For plans that verifyPlan() has accepted; the result
// means something if checkOperandOverlap() and checkInitialisedReads() accept the plan, too.
Dataflow followDataflow(const Places& places);

// The text of an optimizer without its learning rate, which the plan may be run with another of.
std::string withoutLearningRate(std::string optimizer);

// What entry `i` of the digests is of: "the loss", "the update of the parameters of bucket 'h.0'".
std::string dataflowEntry(const Plan& plan, int i);

}  // namespace sheaf::plan
