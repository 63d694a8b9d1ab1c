// Passes on the `train` dialect; each is described in Passes.td and lives in the file of its name.
#pragma once

#include "ir/Train/TrainDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace sheaf::train {
#define GEN_PASS_DECL
#include "passes/train/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train
