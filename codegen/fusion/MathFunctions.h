// Elementary functions on f32 and f64 scalars and vectors, without a call: argument reduction and polynomials.
//
// Errors against the correctly rounded value, over all finite arguments with a normal result (test/codegen measures
// them): at most 4 ulp (4.5 for the f64 tangent); sine, cosine and tangent for |x| up to 1e5 (f32) and 1e4 (f64).
// Those of larger angles are within 1e-6 (1 + y^2) of the exact value y; f64 of 2^50 and more gives NaN. NaN gives NaN;
// infinities and zeros follow IEEE 754's recommendations; results of exp below the normal range are subnormal, those of
// functions that are made of it may be zero. Polynomials are near-minimax fits of relative error.
#pragma once

#include "codegen/fusion/ArithBuilder.h"

namespace sheaf::codegen {

mlir::Value emitExp(ArithBuilder& a, mlir::Value x);
mlir::Value emitLog(ArithBuilder& a, mlir::Value x);
mlir::Value emitTanh(ArithBuilder& a, mlir::Value x);
mlir::Value emitSigmoid(ArithBuilder& a, mlir::Value x);
mlir::Value emitSoftplus(ArithBuilder& a, mlir::Value x);  // log(1 + e^x)
mlir::Value emitErf(ArithBuilder& a, mlir::Value x);
mlir::Value emitExpm1(ArithBuilder& a, mlir::Value x);  // e^x - 1
mlir::Value emitLog1p(ArithBuilder& a, mlir::Value x);  // log(1 + x)
mlir::Value emitSinh(ArithBuilder& a, mlir::Value x);
mlir::Value emitCosh(ArithBuilder& a, mlir::Value x);
mlir::Value emitAsinh(ArithBuilder& a, mlir::Value x);
mlir::Value emitAcosh(ArithBuilder& a, mlir::Value x);
mlir::Value emitAtanh(ArithBuilder& a, mlir::Value x);
mlir::Value emitSin(ArithBuilder& a, mlir::Value x);
mlir::Value emitCos(ArithBuilder& a, mlir::Value x);
mlir::Value emitTan(ArithBuilder& a, mlir::Value x);
mlir::Value emitAsin(ArithBuilder& a, mlir::Value x);
mlir::Value emitAcos(ArithBuilder& a, mlir::Value x);
mlir::Value emitAtan(ArithBuilder& a, mlir::Value x);
// x^y as C's pow; f32 by way of f64, f64 within 1e-13 relative where |y log x| is below 100.
mlir::Value emitPow(ArithBuilder& a, mlir::Value x, mlir::Value y);
// The remainder of x / y with the sign of x; exact for quotients below 2^24 (f32) and 2^52 (f64).
mlir::Value emitFmod(ArithBuilder& a, mlir::Value x, mlir::Value y);

}  // namespace sheaf::codegen
