// States what a kernel computes, in terms of one leaf.
#pragma once

#include <string>

#include "ir/Train/TrainDialect.h"

namespace sheaf::plan_ir {

// The lines of runtime/plan/leaves/KernelProgram.h; none if an op has rows of several leaves and it is not known where.
llvm::SmallVector<std::string> programOf(train::FusionOp fusion);

}  // namespace sheaf::plan_ir
