// What the files of elementary functions share.
#pragma once

#include <limits>

#include "codegen/fusion/ArithBuilder.h"

namespace sheaf::codegen {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The layout of a float type, and the constant whose addition rounds to an integer in the low bits of the mantissa.
struct Format {
  explicit Format(mlir::Type type) : isDouble(ArithBuilder::elementOf(type).isF64()) {}
  bool isDouble;
  int mantissa() const { return isDouble ? 52 : 23; }
  int bias() const { return isDouble ? 1023 : 127; }
  double magic() const { return isDouble ? 0x1.8p52 : 0x1.8p23; }
};

// A polynomial with coefficients for each of the two formats, highest power first.
template <size_t N, size_t M>
mlir::Value polynomial(ArithBuilder& a, mlir::Value x, const double (&f32)[N], const double (&f64)[M]) {
  return Format(x.getType()).isDouble ? a.polynomial(x, f64) : a.polynomial(x, f32);
}

struct Rounded {
  mlir::Value value;  // the nearest integer, as a float
  mlir::Value bits;   // the same as an integer of the float's width
};

// Rounds by adding the magic constant: unlike a conversion it is defined, if meaningless, for NaN.
Rounded roundToInteger(ArithBuilder& a, mlir::Value x);

}  // namespace sheaf::codegen
