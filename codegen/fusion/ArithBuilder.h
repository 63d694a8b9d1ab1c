// Arithmetic on scalars and vectors alike, in the upstream `arith` and `math` dialects: the vocabulary in which kernels
// for any device are written. Nothing here carries a fast-math flag; a fused multiply-add is written as such.
#pragma once

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/IR/Value.h"

namespace sheaf::codegen {

class ArithBuilder {
 public:
  ArithBuilder(mlir::OpBuilder& builder, mlir::Location location) : b(builder), loc(location) {}

  // The shape of `like` (a scalar or a vector) with another element type.
  static mlir::Type withElement(mlir::Type like, mlir::Type element);
  static mlir::Type elementOf(mlir::Type type) { return mlir::getElementTypeOrSelf(type); }
  // The integer type of a float type's width.
  static mlir::Type bitsOf(mlir::Type type);

  mlir::Value constant(mlir::Type type, double value);     // floats
  mlir::Value integer(mlir::Type type, int64_t value);     // integers
  mlir::Value boolean(mlir::Type like, bool value);        // i1 in the shape of `like`
  mlir::Value splat(mlir::Type type, mlir::Value scalar);  // a scalar in every lane; the scalar itself if `type` is one

  mlir::Value add(mlir::Value x, mlir::Value y);
  mlir::Value sub(mlir::Value x, mlir::Value y);
  mlir::Value mul(mlir::Value x, mlir::Value y);
  mlir::Value div(mlir::Value x, mlir::Value y);  // floats
  mlir::Value neg(mlir::Value x);
  mlir::Value abs(mlir::Value x);
  mlir::Value fma(mlir::Value x, mlir::Value y, mlir::Value z);
  mlir::Value sqrt(mlir::Value x);
  mlir::Value floor(mlir::Value x);
  mlir::Value ceil(mlir::Value x);
  mlir::Value roundEven(mlir::Value x);
  mlir::Value truncate(mlir::Value x);  // towards zero
  mlir::Value bitAnd(mlir::Value x, mlir::Value y);
  mlir::Value bitOr(mlir::Value x, mlir::Value y);
  mlir::Value bitXor(mlir::Value x, mlir::Value y);
  mlir::Value shiftLeft(mlir::Value x, int64_t bits);
  mlir::Value shiftRight(mlir::Value x, int64_t bits);  // arithmetic
  mlir::Value shiftRightLogical(mlir::Value x, int64_t bits);
  mlir::Value bitcast(mlir::Type type, mlir::Value x);
  mlir::Value compare(mlir::arith::CmpFPredicate predicate, mlir::Value x, mlir::Value y);
  mlir::Value compare(mlir::arith::CmpIPredicate predicate, mlir::Value x, mlir::Value y);
  mlir::Value select(mlir::Value condition, mlir::Value x, mlir::Value y);
  mlir::Value isNan(mlir::Value x);
  // The larger and the smaller; a NaN operand gives NaN. Ordered by compare and select, so a zero's sign is either's.
  mlir::Value maximum(mlir::Value x, mlir::Value y);
  mlir::Value minimum(mlir::Value x, mlir::Value y);
  // x limited to [low, high]; NaN stays NaN.
  mlir::Value clamp(mlir::Value x, double low, double high);
  // The magnitude of x with the sign of y.
  mlir::Value copySign(mlir::Value x, mlir::Value y);
  // f32 to the 16 bits of the nearest bf16, ties to even, and back.
  mlir::Value toBf16Bits(mlir::Value x);
  mlir::Value fromBf16Bits(mlir::Value bits);
  // c[0] x^(n-1) + ... + c[n-1], by fused multiply-adds.
  mlir::Value polynomial(mlir::Value x, llvm::ArrayRef<double> coefficients);

  mlir::OpBuilder& b;
  mlir::Location loc;
  // Whether the target has an instruction that rounds f32 to bf16. It may give another NaN.
  bool roundsToBf16 = false;
};

}  // namespace sheaf::codegen
