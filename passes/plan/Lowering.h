// The lowering of a module to a draft: what the functions that lower an op share.
#pragma once

#include "passes/plan/ZeroLowering.h"

namespace sheaf::plan_ir {

struct Lowering {
  LoweredModule from;
  PlanBuilder builder;
  Locations places;
  ZeroLowering zero;

  Lowering(mlir::ModuleOp module, const LowerOptions& options)
      : from(module), builder(module, options), places(builder), zero(from, builder, places) {}
  Lowering(const Lowering&) = delete;

  // The pieces of the batch, of which a rank computes one at a time.
  int64_t pieces() {
    const bool evaluates = builder.appendsTo(*builder.plan().mutable_evaluation());
    return from.ranks * (evaluates ? 1 : zero::moduleInteger(from.module, "train.micro_batches", 1));
  }
};

// LowerCalls.cpp: lowers one op that is not of the `zero` dialect.
mlir::LogicalResult lowerOp(Lowering& l, mlir::Operation* op);

}  // namespace sheaf::plan_ir
