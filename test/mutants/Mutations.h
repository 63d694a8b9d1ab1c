// Every way of a kind in which a plan can be made wrong by one change. Mutations.cpp changes order, bytes and memory,
// TableMutations.cpp everything else.
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

std::vector<Mutation> otherHyperparameters(const plan::Plan& plan);
std::vector<Mutation> otherInputs(const plan::Plan& plan);
std::vector<Mutation> otherParameters(const plan::Plan& plan);
std::vector<Mutation> otherBuckets(const plan::Plan& plan);
std::vector<Mutation> otherFiles(const plan::Plan& plan);
std::vector<Mutation> otherKernels(const plan::Plan& plan);
std::vector<Mutation> otherImages(const plan::Plan& plan);
std::vector<Mutation> otherAttributes(const plan::Plan& plan);
std::vector<Mutation> otherBuffers(const plan::Plan& plan);
std::vector<Mutation> repeatedAtTheEnd(const plan::Plan& plan);
std::vector<Mutation> otherTurns(const plan::Plan& plan);
std::vector<Mutation> otherFloors(const plan::Plan& plan);
std::vector<Mutation> otherOrigins(const plan::Plan& plan);
std::vector<Mutation> otherDigests(const plan::Plan& plan);

// Memory is declared again where a mutant moves the topmost byte: it must be the move that is refused.
extern const std::vector<MutationKind> kMutationKinds;

}  // namespace sheaf::mutants
