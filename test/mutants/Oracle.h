// A second opinion on mutants that the verifier accepts, by brute force and without the verifier's code: reachability
// over explicit edges, every pair of accesses on every rank, and the run of each rank on symbolic values in the arena's
// bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::mutants {

struct Verdict {
  std::string fault;     // what is wrong with the mutant; empty: it does what the original does
  size_t conflicts = 0;  // pairs of accesses to the same bytes, one of them a write, all of them ordered
  size_t values = 0;     // outputs and states compared with the original's, all of them equal
};

class Oracle {
 public:
  // The original must outlive the oracle.
  explicit Oracle(const plan::Plan& original);
  // The mutant must have passed verifyPlan().
  Verdict judge(const plan::Plan& mutant);

  // By one rank in one run: outputs, and what the host sees of each state each time.
  struct Observed {
    std::vector<int64_t> outputs;
    std::vector<std::vector<int64_t>> states;
    bool operator==(const Observed&) const = default;
  };

 private:
  friend class Unfolding;
  using Term = std::vector<int64_t>;

  int64_t intern(Term term);
  int64_t intern(const std::string& text);

  const plan::Plan& original_;
  std::map<Term, int64_t> terms_;
  std::map<std::string, int64_t> texts_;
  std::vector<std::map<Term, int64_t>::iterator> fresh_;  // the terms of the mutant alone
  std::vector<Observed> observed_;                        // by the original, by run and rank
};

// Whether a run of many steps is free of races and reads of what was not written, and leaves the same outputs and state
// as that many runs of one step, with the host between them. Empty: it does. For plans that have passed verifyPlan().
std::string faultOfManySteps(const plan::Plan& plan, int steps);

}  // namespace sheaf::mutants
