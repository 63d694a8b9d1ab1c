// The kernels that devices are measured with: fusions of training steps, compiled.
#pragma once

#include "codegen/emit/Targets.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::tool {

// Makes a probe for ranks of these targets. An error has been printed if it returns false.
bool compileProbe(const codegen::KernelTargets& targets, int64_t ranks, plan::Plan& probe);

}  // namespace sheaf::tool
