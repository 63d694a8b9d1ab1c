// Passes on the `zero` dialect; each is described in Passes.td and lives in the file of its name.
#pragma once

#include "ir/Zero/ZeroDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "passes/StepModule.h"

namespace sheaf::zero {

// Of a bucket whose size zero-form-buckets chooses.
constexpr int64_t kMostBucketBytes = 64 << 20;
#define GEN_PASS_DECL
#include "passes/zero/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "passes/zero/Passes.h.inc"
}  // namespace sheaf::zero
