// Every way of a kind in which a plan can be made wrong by one change.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::mutants {

struct Mutation {
  std::string description;
  std::function<void(plan::Plan&)> apply;  // to a copy of the plan it was made from
};

struct MutationKind {
  const char* name;
  std::vector<Mutation> (*make)(const plan::Plan&);
  bool mayBeEquivalent;  // whether a mutant may do what the original does, so that a survivor can be explained
};

// Memory is declared anew where a mutant moves the topmost byte: it must be the move that is refused.
extern const std::vector<MutationKind> kMutationKinds;

}  // namespace sheaf::mutants
