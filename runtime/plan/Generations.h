// State in files that outlives a crash: which buffers are two generations of one, and what a plan lacks for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Where a plan's buffers are while the generations have changed roles an odd number of times (`odd`) or an even one. It
// is a copy of what it needs of the plan; buffers that are not in the plan do not count.
class Generations {
 public:
  explicit Generations(const Plan& plan);

  // The buffer whose place in the arena this one has.
  uint32_t placeOf(uint32_t buffer, bool odd) const { return odd && buffer < other_.size() ? other_[buffer] : buffer; }
  bool isNext(uint32_t buffer) const { return buffer < next_.size() && next_[buffer]; }
  bool isCurrent(uint32_t buffer) const { return buffer < other_.size() && other_[buffer] != buffer && !next_[buffer]; }

 private:
  std::vector<uint32_t> other_;  // of each buffer; itself if it has one generation
  std::vector<bool> next_;
};

// The sum of a persist with several ranks: each gives the same number when its files are durable.
Instruction voteOf(const Instruction& persist);

// What training changes, or begins with, and is not in files: "the parameters of bucket 'bucket0' (on the device)". If
// there is nothing, files can hold all that a run goes on from.
std::vector<std::string> stateOutsideFiles(const Plan& plan);

// Why files cannot be resumed, and what to compile; empty: they can.
std::string whyNotRestartable(const Plan& plan);

}  // namespace sheaf::plan
