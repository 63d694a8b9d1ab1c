// What a step and an evaluation compute, as values of the leaves of the batch: whatever the number of ranks, nodes and
// micro-batches, the stage, the schedule and the memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/leaves/Machine.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// A result of all ranks together.
struct LeafValue {
  std::string name;                // "the loss", "the parameters of bucket 'h.0'"
  Contents contents;               // in bytes, in the order of the bucket's elements or the batch's rows
  const Bucket* bucket = nullptr;  // of a state
  uint64_t width = 4;              // bytes of an element
};

struct LeafDataflow {
  std::vector<LeafValue> step;        // outputs, then the states in the order of the buckets
  std::vector<LeafValue> evaluation;  // scalars by their kind, then tensors
  Makers makers;                      // if they are asked for
  bool complete = true;               // false: there are more pieces of values than were allowed
};

// Executes P·B·E and V, from states of which nothing is known, on all ranks. For plans that readProvedPlan() has
// accepted, of which the proof says that every step computes what this one does. The plan must outlive the result. An
// error if the plan does not state what its kernels compute, or if ranks disagree about a value that all should have.
// With `most`, what has more pieces of values is given up.
Expected<LeafDataflow> followLeaves(const Plan& plan, bool withMakers = false,
                                    std::optional<uint64_t> most = std::nullopt);

// The first value that differs, in words; of two plans with the same tables.
struct LeafDifference {
  std::string value;          // "the parameters of bucket 'bucket0', at element 12 of parameter 'fc1.weight'"
  std::string first, second;  // what makes it in each plan: with makers, the first instruction that differs
};
struct LeafPlan {
  const Plan& plan;
  const LeafDataflow& dataflow;
};
// With `evaluations` these are compared, too.
std::optional<LeafDifference> firstDifference(const LeafPlan& first, const LeafPlan& second, bool evaluations);

}  // namespace sheaf::plan
