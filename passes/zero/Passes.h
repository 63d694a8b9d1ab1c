// Passes on the `zero` dialect; each is described in Passes.td and lives in the file of its name.
#pragma once

#include "ir/Zero/ZeroDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace sheaf::zero {
#define GEN_PASS_DECL
#include "passes/zero/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "passes/zero/Passes.h.inc"

// The step function of a module, or null.
inline mlir::func::FuncOp stepOf(mlir::ModuleOp module) {
  return module.lookupSymbol<mlir::func::FuncOp>("step");
}

// An integer attribute of the module, or a default.
inline int64_t moduleInteger(mlir::ModuleOp module, llvm::StringRef name, int64_t otherwise) {
  auto attribute = module->getAttrOfType<mlir::IntegerAttr>(name);
  return attribute ? attribute.getInt() : otherwise;
}
}  // namespace sheaf::zero
