// Finds the values of a step that stay f32 in memory when memory holds bf16 or f16: those whose absolute precision
// matters.
#pragma once

#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/StringSet.h"
#include "mlir/IR/BuiltinOps.h"

namespace sheaf::train {

// True for a product, which takes and gives 16 bits where it may.
bool isHalfProduct(mlir::Operation* op);
// True for an op that moves or adds elements of its first operand, whatever their type.
bool keepsElementType(mlir::Operation* op);

// Positions, time steps, masks and tables are computed from data and constants: rounding 1001 to 1000 changes an angle
// by a radian. Relative errors of weights and activations, in contrast, are what training in 16 bits accepts.
//
// f32 stays
// - a value that depends on data, constants and step scalars alone, unless it is of few values that the narrow type
//   holds exactly, as masks of zeros and ones are;
// - an elementwise value whose absolute error counts: one that reaches a sine, a cosine, a tangent or a running sum
//   through elementwise ops and moves, unless it has the error of a product's rounded result already;
// - a parameter that reaches a sine, a cosine or a tangent so: a frequency.
// A product of data and constants alone is computed in f32 if its result is of the second kind, else in 16 bits.
class F32Values {
 public:
  F32Values(mlir::ModuleOp module, mlir::Block& block, mlir::FloatType half);

  bool contains(mlir::Value v) const {
    return (sensitive.contains(v) && !coarse.contains(v)) || (ofData.contains(v) && !exact.contains(v));
  }
  bool contains(ParameterOp parameter) const { return parameters.contains(parameter.getSymName()); }
  // True for a product that is computed in f32.
  bool computes(mlir::Operation* product) const;

 private:
  void findData(mlir::ModuleOp module, mlir::Block& block, mlir::FloatType half);
  // Marks what reaches the value through elementwise ops and moves.
  static void trace(mlir::Value v, llvm::DenseSet<mlir::Value>& marked);
  void findCoarse(mlir::Block& block);
  void findParameters(mlir::Block& block);

  llvm::DenseSet<mlir::Value> ofData, exact, sensitive;
  llvm::DenseSet<mlir::Value> coarse;  // with the error of a product's result or of a rounded parameter
  llvm::StringSet<> parameters;
};

}  // namespace sheaf::train
