// The shipped profile that is nearest to the device a plan is for.
#pragma once

#include "codegen/emit/Targets.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::tool {

const char* usualProfile(const codegen::KernelTarget& target);
// Of the plan's first image.
const char* usualProfile(const plan::Plan& plan);

}  // namespace sheaf::tool
