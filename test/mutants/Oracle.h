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

 private:
  friend class Unfolding;
  using Term = std::vector<int64_t>;

  int64_t intern(Term term);
  int64_t intern(const std::string& text);

  const plan::Plan& original_;
  std::map<Term, int64_t> terms_;
  std::map<std::string, int64_t> texts_;
  std::vector<std::map<Term, int64_t>::iterator> fresh_;  // the terms of the mutant alone
  std::vector<std::vector<int64_t>> observed_;            // by the original: outputs and states, by run and rank
};

}  // namespace sheaf::mutants
