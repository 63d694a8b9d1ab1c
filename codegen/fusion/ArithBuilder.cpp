#include "codegen/fusion/ArithBuilder.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/BuiltinAttributes.h"

using namespace mlir;

namespace sheaf::codegen {

Type ArithBuilder::withElement(Type like, Type element) {
  if (auto vector = dyn_cast<VectorType>(like)) return VectorType::get(vector.getShape(), element);
  return element;
}

Type ArithBuilder::bitsOf(Type type) {
  return withElement(type, IntegerType::get(type.getContext(), elementOf(type).getIntOrFloatBitWidth()));
}

static Value constantOf(ArithBuilder& a, Type type, TypedAttr element) {
  if (auto vector = dyn_cast<VectorType>(type))
    return arith::ConstantOp::create(a.b, a.loc, DenseElementsAttr::get(vector, Attribute(element)));
  return arith::ConstantOp::create(a.b, a.loc, element);
}

Value ArithBuilder::constant(Type type, double value) {
  return constantOf(*this, type, b.getFloatAttr(elementOf(type), value));
}
Value ArithBuilder::integer(Type type, int64_t value) {
  return constantOf(*this, type, b.getIntegerAttr(elementOf(type), value));
}
Value ArithBuilder::boolean(Type like, bool value) {
  return integer(withElement(like, b.getI1Type()), value);
}
Value ArithBuilder::splat(Type type, Value scalar) {
  return type == scalar.getType() ? scalar : vector::BroadcastOp::create(b, loc, type, scalar).getResult();
}

static bool isFloat(Value x) {
  return isa<FloatType>(getElementTypeOrSelf(x.getType()));
}

Value ArithBuilder::add(Value x, Value y) {
  if (isFloat(x)) return arith::AddFOp::create(b, loc, x, y);
  return arith::AddIOp::create(b, loc, x, y);
}
Value ArithBuilder::sub(Value x, Value y) {
  if (isFloat(x)) return arith::SubFOp::create(b, loc, x, y);
  return arith::SubIOp::create(b, loc, x, y);
}
Value ArithBuilder::mul(Value x, Value y) {
  if (isFloat(x)) return arith::MulFOp::create(b, loc, x, y);
  return arith::MulIOp::create(b, loc, x, y);
}
Value ArithBuilder::div(Value x, Value y) {
  return arith::DivFOp::create(b, loc, x, y);
}
Value ArithBuilder::neg(Value x) {
  if (isFloat(x)) return arith::NegFOp::create(b, loc, x);
  return sub(integer(x.getType(), 0), x);
}
Value ArithBuilder::abs(Value x) {
  if (isFloat(x)) return math::AbsFOp::create(b, loc, x);
  return select(compare(arith::CmpIPredicate::slt, x, integer(x.getType(), 0)), neg(x), x);
}
Value ArithBuilder::fma(Value x, Value y, Value z) {
  return math::FmaOp::create(b, loc, x, y, z);
}
Value ArithBuilder::sqrt(Value x) {
  return math::SqrtOp::create(b, loc, x);
}
Value ArithBuilder::floor(Value x) {
  return math::FloorOp::create(b, loc, x);
}
Value ArithBuilder::ceil(Value x) {
  return math::CeilOp::create(b, loc, x);
}
Value ArithBuilder::roundEven(Value x) {
  return math::RoundEvenOp::create(b, loc, x);
}
Value ArithBuilder::truncate(Value x) {
  return math::TruncOp::create(b, loc, x);
}
Value ArithBuilder::bitAnd(Value x, Value y) {
  return arith::AndIOp::create(b, loc, x, y);
}
Value ArithBuilder::bitOr(Value x, Value y) {
  return arith::OrIOp::create(b, loc, x, y);
}
Value ArithBuilder::bitXor(Value x, Value y) {
  return arith::XOrIOp::create(b, loc, x, y);
}
Value ArithBuilder::shiftLeft(Value x, int64_t bits) {
  return arith::ShLIOp::create(b, loc, x, integer(x.getType(), bits));
}
Value ArithBuilder::shiftRight(Value x, int64_t bits) {
  return arith::ShRSIOp::create(b, loc, x, integer(x.getType(), bits));
}
Value ArithBuilder::shiftRightLogical(Value x, int64_t bits) {
  return arith::ShRUIOp::create(b, loc, x, integer(x.getType(), bits));
}
Value ArithBuilder::bitcast(Type type, Value x) {
  return arith::BitcastOp::create(b, loc, type, x);
}
Value ArithBuilder::compare(arith::CmpFPredicate predicate, Value x, Value y) {
  return arith::CmpFOp::create(b, loc, predicate, x, y);
}
Value ArithBuilder::compare(arith::CmpIPredicate predicate, Value x, Value y) {
  return arith::CmpIOp::create(b, loc, predicate, x, y);
}
Value ArithBuilder::select(Value condition, Value x, Value y) {
  return arith::SelectOp::create(b, loc, condition, x, y);
}
Value ArithBuilder::isNan(Value x) {
  return compare(arith::CmpFPredicate::UNO, x, x);
}

// `x > y ? x : y` is one instruction and gives y where either is NaN, so only a NaN in x needs a second look.
Value ArithBuilder::maximum(Value x, Value y) {
  return select(isNan(x), x, select(compare(arith::CmpFPredicate::OGT, x, y), x, y));
}
Value ArithBuilder::minimum(Value x, Value y) {
  return select(isNan(x), x, select(compare(arith::CmpFPredicate::OLT, x, y), x, y));
}
Value ArithBuilder::clamp(Value x, double low, double high) {
  Value l = constant(x.getType(), low), h = constant(x.getType(), high);
  x = select(compare(arith::CmpFPredicate::OGT, l, x), l, x);
  return select(compare(arith::CmpFPredicate::OLT, h, x), h, x);
}
Value ArithBuilder::copySign(Value x, Value y) {
  return math::CopySignOp::create(b, loc, x, y);
}

// By integers: targets without a bf16 conversion would call a library.
Value ArithBuilder::toBf16Bits(Value x) {
  if (roundsToBf16) {
    Value narrow = arith::TruncFOp::create(b, loc, withElement(x.getType(), b.getBF16Type()), x);
    return bitcast(withElement(x.getType(), b.getIntegerType(16)), narrow);
  }
  Type bits = bitsOf(x.getType());
  Value i = bitcast(bits, x), upper = shiftRightLogical(i, 16);
  Value tie = add(bitAnd(upper, integer(bits, 1)), integer(bits, 0x7fff));
  Value rounded = shiftRightLogical(add(i, tie), 16);
  Value quiet = bitOr(upper, integer(bits, 0x40));
  Value result = select(isNan(x), quiet, rounded);
  return arith::TruncIOp::create(b, loc, withElement(bits, b.getIntegerType(16)), result);
}
Value ArithBuilder::fromBf16Bits(Value bits) {
  Type wide = withElement(bits.getType(), b.getI32Type());
  Value i = arith::ExtUIOp::create(b, loc, wide, bits);
  return bitcast(withElement(wide, b.getF32Type()), shiftLeft(i, 16));
}

Value ArithBuilder::polynomial(Value x, ArrayRef<double> coefficients) {
  Value result = constant(x.getType(), coefficients.front());
  for (double c : coefficients.drop_front()) result = fma(result, x, constant(x.getType(), c));
  return result;
}

}  // namespace sheaf::codegen
