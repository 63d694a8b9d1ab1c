// The functions and attributes of the module that a pass works on.
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace sheaf::zero {

// The step function of a module, or null.
inline mlir::func::FuncOp stepOf(mlir::ModuleOp module) {
  return module.lookupSymbol<mlir::func::FuncOp>("step");
}

// The evaluation of a module, or null.
inline mlir::func::FuncOp evaluationOf(mlir::ModuleOp module) {
  return module.lookupSymbol<mlir::func::FuncOp>("evaluation");
}

// The functions that a step of several micro-batches runs before @step, in the order of their numbers: those that count
// what sums over all micro-batches divide by, and those that accumulate gradients. zero-split-micro-batches makes them.
inline constexpr llvm::StringLiteral kCountPrefix = "count", kAccumulatePrefix = "accumulate";
inline llvm::SmallVector<mlir::func::FuncOp> partsOf(mlir::ModuleOp module, llvm::StringRef prefix) {
  llvm::SmallVector<mlir::func::FuncOp> parts;
  while (auto part = module.lookupSymbol<mlir::func::FuncOp>((prefix + llvm::Twine(parts.size())).str()))
    parts.push_back(part);
  return parts;
}

// Those of the two that there are.
inline llvm::SmallVector<mlir::func::FuncOp, 2> functionsOf(mlir::ModuleOp module) {
  llvm::SmallVector<mlir::func::FuncOp, 2> functions;
  for (mlir::func::FuncOp function : {stepOf(module), evaluationOf(module)})
    if (function) functions.push_back(function);
  return functions;
}

// An integer attribute of the module, or a default.
inline int64_t moduleInteger(mlir::ModuleOp module, llvm::StringRef name, int64_t otherwise) {
  auto attribute = module->getAttrOfType<mlir::IntegerAttr>(name);
  return attribute ? attribute.getInt() : otherwise;
}

inline int64_t ranksOf(mlir::ModuleOp module) {
  return moduleInteger(module, "train.ranks", 1);
}

// The ZeRO stage that passes use, within nodes where there are any: 0 for one rank, which has nothing to shard.
inline int64_t effectiveStage(mlir::ModuleOp module) {
  return ranksOf(module) > 1 ? moduleInteger(module, "zero.stage", 0) : 0;
}

// Who shards what. A module without nodes is one node of all ranks.
struct Sharding {
  int64_t ranks = 1, perNode = 1;
  int64_t stage = 0, networkStage = 0;  // of the ranks of a node, and of ranks of different nodes
  bool hasNodes = false;

  int64_t nodes() const { return ranks / perNode; }
  // Into how many parts storage is divided that is sharded from stage `least` on.
  int64_t parts(int64_t least) const { return stage < least ? 1 : networkStage < least ? perNode : ranks; }
};

inline Sharding shardingOf(mlir::ModuleOp module) {
  Sharding sharding{.ranks = ranksOf(module), .stage = effectiveStage(module)};
  sharding.hasNodes = module->hasAttr("zero.ranks_per_node");
  sharding.perNode = moduleInteger(module, "zero.ranks_per_node", sharding.ranks);
  sharding.networkStage = sharding.ranks > 1 ? moduleInteger(module, "zero.network_stage", sharding.stage) : 0;
  return sharding;
}

}  // namespace sheaf::zero
