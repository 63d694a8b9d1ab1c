// Reads plans of older versions.
#pragma once

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Makes a parsed plan of version 3 one of version 4: operands move from the fields of each kind to
// Instruction.operands. Leaves plans of other versions as they are. A plan that has operands where its version has none
// is an error. Nothing else reads or writes the fields of version 3.
Status upgrade(Plan& plan);

}  // namespace sheaf::plan
