// The steps that make a plan of a module, in the order in which makePlan() in passes/Pipeline.cpp takes them. Passes.td
// describes each.
#pragma once

#include "ir/Plan/Draft.h"
#include "passes/plan/Passes.h"
#include "runtime/base/Status.h"

namespace sheaf::plan_ir {

// The devices that the plan is for.
struct LowerOptions {
  int64_t maxThreads = 8;  // that scratch is reserved for, of a rank
  bool cpu = true, gpu = false;
};

// Replaces the module's step and evaluation by a plan; the fusions of its kernels stay in the module. An error has been
// reported where this fails.
mlir::FailureOr<Draft> lowerToPlan(mlir::ModuleOp module, const LowerOptions& options);
Status digestDataflow(Draft& draft);
Status offload(Draft& draft, const OffloadOptions& options);
Status copyHostOperands(Draft& draft);
Status scheduleInstructions(Draft& draft, const ScheduleOptions& options);
Status addGenerations(Draft& draft, int64_t generations);
Status insertEvents(Draft& draft, bool placed);
Status elideEvents(Draft& draft);
Status allocateArena(Draft& draft);

}  // namespace sheaf::plan_ir
