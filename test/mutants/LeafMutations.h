// Ways in which a plan can compute other bits though it is a good plan: other rows, another dealing, another order of
// sums, other roundings, other programs of kernels.
#pragma once

#include "test/mutants/Mutations.h"

namespace sheaf::mutants {

extern const std::vector<MutationKind> kLeafMutationKinds;

}  // namespace sheaf::mutants
