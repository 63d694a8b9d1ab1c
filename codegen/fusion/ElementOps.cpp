#include "codegen/fusion/ElementOps.h"

#include <cmath>

#include "codegen/fusion/MathFunctions.h"
#include "ir/Train/ElementTypes.h"
#include "ir/Train/TrainDialect.h"

using namespace mlir;
using namespace sheaf::train;
using arith::CmpFPredicate;
using arith::CmpIPredicate;

namespace sheaf::codegen {

Type computeType(Type element, MLIRContext* context) {
  if (isa<FloatType>(element)) return elementType(context, elementFacts(element).computed);
  return IntegerType::get(context, element.getIntOrFloatBitWidth());
}

// What the rows of ir/Train/ElementwiseOps.td call besides ArithBuilder and MathFunctions.h.

static bool isFloat(Type element) {
  return isa<FloatType>(element);
}
// Booleans and unsigned integers.
static bool isUnsigned(Type element) {
  return element.isInteger(1) || element.isUnsignedInteger();
}

static Value emitAbs(ArithBuilder& a, Value x, Type element) {
  return isUnsigned(element) ? x : a.abs(x);
}

static Value emitSign(ArithBuilder& a, Value x, Type element) {
  Type type = x.getType();
  if (isFloat(element)) {
    Value zero = a.constant(type, 0.0);
    Value result = a.select(a.compare(CmpFPredicate::OLT, x, zero), a.constant(type, -1.0), x);
    return a.select(a.compare(CmpFPredicate::OGT, x, zero), a.constant(type, 1.0), result);
  }
  Value zero = a.integer(type, 0);
  if (isUnsigned(element)) return a.select(a.compare(CmpIPredicate::ne, x, zero), a.integer(type, 1), zero);
  Value result = a.select(a.compare(CmpIPredicate::slt, x, zero), a.integer(type, -1), zero);
  return a.select(a.compare(CmpIPredicate::sgt, x, zero), a.integer(type, 1), result);
}

static Value emitExtremum(ArithBuilder& a, Value x, Value y, Type element, bool larger) {
  if (isFloat(element)) return larger ? a.maximum(x, y) : a.minimum(x, y);
  auto predicate = isUnsigned(element) ? (larger ? CmpIPredicate::ugt : CmpIPredicate::ult)
                                       : (larger ? CmpIPredicate::sgt : CmpIPredicate::slt);
  return a.select(a.compare(predicate, x, y), x, y);
}
static Value emitMin(ArithBuilder& a, Value x, Value y, Type element) {
  return emitExtremum(a, x, y, element, false);
}
static Value emitMax(ArithBuilder& a, Value x, Value y, Type element) {
  return emitExtremum(a, x, y, element, true);
}

static Value emitRelu(ArithBuilder& a, Value x, Type element) {
  if (!isFloat(element)) return emitMax(a, x, a.integer(x.getType(), 0), element);
  Value zero = a.constant(x.getType(), 0.0);
  return a.select(a.compare(CmpFPredicate::OLE, x, zero), zero, x);
}

static Value emitGuard(ArithBuilder& a, Value g, Value x, Value y) {
  Value zero = a.constant(y.getType(), 0.0);
  Value guarded = a.bitAnd(a.compare(CmpFPredicate::OEQ, g, zero), a.compare(CmpFPredicate::ORD, x, x));
  return a.select(guarded, zero, y);
}

namespace {
struct Division {
  Value quotient, remainder;
};
}  // namespace

// Integer division that traps nowhere: by zero it gives zero, by -1 it negates (which may wrap).
static Division emitIntegerDivision(ArithBuilder& a, Value x, Value y, Type element) {
  Type type = y.getType();
  Value zero = a.integer(type, 0), one = a.integer(type, 1);
  Value byZero = a.compare(CmpIPredicate::eq, y, zero);
  Value divisor = a.select(byZero, one, y);
  Value quotient;
  if (isUnsigned(element)) {
    quotient = arith::DivUIOp::create(a.b, a.loc, x, divisor);
  } else {
    Value negation = a.compare(CmpIPredicate::eq, y, a.integer(type, -1));
    divisor = a.select(negation, one, divisor);
    quotient = arith::DivSIOp::create(a.b, a.loc, x, divisor);
    quotient = a.select(negation, a.neg(x), quotient);
  }
  quotient = a.select(byZero, zero, quotient);
  return {quotient, a.select(byZero, zero, a.sub(x, a.mul(quotient, y)))};
}

static Value emitDiv(ArithBuilder& a, Value x, Value y, Type element) {
  return isFloat(element) ? a.div(x, y) : emitIntegerDivision(a, x, y, element).quotient;
}

// Integers wrap around. A negative exponent gives what division would: 0, but of 1 and -1 a power of -1.
static Value emitAnyPow(ArithBuilder& a, Value x, Value y, Type element) {
  if (isFloat(element)) return emitPow(a, x, y);
  Type type = x.getType();
  unsigned bits = element.getIntOrFloatBitWidth() - (isUnsigned(element) ? 0 : 1);
  Value zero = a.integer(type, 0), one = a.integer(type, 1), minusOne = a.integer(type, -1);
  auto isSet = [&](unsigned bit) {
    return a.compare(CmpIPredicate::ne, a.bitAnd(y, a.integer(type, int64_t(1) << bit)), zero);
  };
  Value result = one, power = x;  // x^(2^bit)
  for (unsigned bit = 0; bit < bits; ++bit) {
    result = a.select(isSet(bit), a.mul(result, power), result);
    if (bit + 1 < bits) power = a.mul(power, power);
  }
  if (isUnsigned(element)) return result;
  Value inverse = a.select(a.compare(CmpIPredicate::eq, x, minusOne), a.select(isSet(0), minusOne, one), zero);
  inverse = a.select(a.compare(CmpIPredicate::eq, x, one), one, inverse);
  return a.select(a.compare(CmpIPredicate::slt, y, zero), inverse, result);
}

static Value emitMod(ArithBuilder& a, Value x, Value y, Type element, bool fmod) {
  Type type = x.getType();
  if (isFloat(element)) {
    Value r = emitFmod(a, x, y);
    if (fmod) return r;
    Value zero = a.constant(type, 0.0);
    Value differs = a.bitXor(a.compare(CmpFPredicate::OLT, r, zero), a.compare(CmpFPredicate::OLT, y, zero));
    Value adjust = a.bitAnd(differs, a.compare(CmpFPredicate::ONE, r, zero));
    return a.select(adjust, a.add(r, y), r);
  }
  Value r = emitIntegerDivision(a, x, y, element).remainder;
  if (fmod || isUnsigned(element)) return r;
  Value zero = a.integer(type, 0);
  Value differs = a.bitXor(a.compare(CmpIPredicate::slt, r, zero), a.compare(CmpIPredicate::slt, y, zero));
  Value adjust = a.bitAnd(differs, a.compare(CmpIPredicate::ne, r, zero));
  return a.select(adjust, a.add(r, y), r);
}

// Shifts by less than 0, or by the width or more, move every bit out; the bare instructions are undefined there.
static Value emitShiftLeft(ArithBuilder& a, Value x, Value y) {
  Type type = x.getType();
  Value width = a.integer(type, ArithBuilder::elementOf(type).getIntOrFloatBitWidth()), zero = a.integer(type, 0);
  Value fits = a.compare(CmpIPredicate::ult, y, width);
  Value shifted = arith::ShLIOp::create(a.b, a.loc, x, a.select(fits, y, zero));
  return a.select(fits, shifted, zero);
}

static Value emitShiftRight(ArithBuilder& a, Value x, Value y, Type element) {
  Type type = x.getType();
  int64_t width = ArithBuilder::elementOf(type).getIntOrFloatBitWidth();
  Value fits = a.compare(CmpIPredicate::ult, y, a.integer(type, width)), zero = a.integer(type, 0);
  if (isUnsigned(element)) {
    Value shifted = arith::ShRUIOp::create(a.b, a.loc, x, a.select(fits, y, zero));
    return a.select(fits, shifted, zero);
  }
  return arith::ShRSIOp::create(a.b, a.loc, x, a.select(fits, y, a.integer(type, width - 1)));
}

static Value emitCompare(ArithBuilder& a, ComparePredicate predicate, Value x, Value y, Type element) {
  static const CmpFPredicate floats[] = {CmpFPredicate::OEQ, CmpFPredicate::UNE, CmpFPredicate::OLT,
                                         CmpFPredicate::OLE, CmpFPredicate::OGT, CmpFPredicate::OGE};
  static const CmpIPredicate signedOnes[] = {CmpIPredicate::eq,  CmpIPredicate::ne,  CmpIPredicate::slt,
                                             CmpIPredicate::sle, CmpIPredicate::sgt, CmpIPredicate::sge};
  static const CmpIPredicate unsignedOnes[] = {CmpIPredicate::eq,  CmpIPredicate::ne,  CmpIPredicate::ult,
                                               CmpIPredicate::ule, CmpIPredicate::ugt, CmpIPredicate::uge};
  auto which = static_cast<uint32_t>(predicate);
  if (isFloat(element)) return a.compare(floats[which], x, y);
  return a.compare(isUnsigned(element) ? unsignedOnes[which] : signedOnes[which], x, y);
}

// Rounds an f32 to the nearest value of a narrower format, ties to even, and stays f32.
static Value roundTo(ArithBuilder& a, Value x, plan::Element<plan::BF16>) {
  return a.fromBf16Bits(a.toBf16Bits(x));
}
static Value roundTo(ArithBuilder& a, Value x, plan::Element<plan::F16>) {
  Type narrow = ArithBuilder::withElement(x.getType(), a.b.getF16Type());
  Value rounded = arith::TruncFOp::create(a.b, a.loc, narrow, x);
  return arith::ExtFOp::create(a.b, a.loc, x.getType(), rounded);
}

// Float to integer as ir/Train/Evaluator.h defines it: truncates, saturates, and makes NaN zero. The bare instruction
// is undefined out of range.
static Value floatToInteger(ArithBuilder& a, Value x, Type from, Type to, bool isUnsigned) {
  // The limits as floats that the conversion of their own type can take.
  unsigned width = ArithBuilder::elementOf(to).getIntOrFloatBitWidth();
  int precision = ArithBuilder::elementOf(from).isF64() ? 53 : 24;
  int bits = static_cast<int>(isUnsigned ? width : width - 1);
  double power = std::ldexp(1.0, bits);
  double high = bits > precision ? power - std::ldexp(1.0, bits - precision) : power - 1.0;
  x = a.select(a.isNan(x), a.constant(from, 0.0), x);
  Value limited = a.clamp(x, isUnsigned ? 0.0 : -power, high);
  if (isUnsigned) return arith::FPToUIOp::create(a.b, a.loc, to, limited);
  Value result = arith::FPToSIOp::create(a.b, a.loc, to, limited);
  if (bits <= precision) return result;
  // The largest integer is not a float: what was limited to the float below it becomes that integer.
  Value above = a.compare(CmpFPredicate::OGE, x, a.constant(from, power));
  return a.select(above, a.integer(to, static_cast<int64_t>((uint64_t(1) << bits) - 1)), result);
}

static Value emitCast(ArithBuilder& a, Value x, Type from, Type to) {
  Type type = ArithBuilder::withElement(x.getType(), computeType(to, a.b.getContext()));
  if (isFloat(to)) {
    Value result = x;
    if (!isFloat(from)) {
      result = isUnsigned(from) ? arith::UIToFPOp::create(a.b, a.loc, type, x).getResult()
                                : arith::SIToFPOp::create(a.b, a.loc, type, x).getResult();
    } else if (type != x.getType()) {
      result = from.isF64() ? arith::TruncFOp::create(a.b, a.loc, type, x).getResult()
                            : arith::ExtFOp::create(a.b, a.loc, type, x).getResult();
    }
    // Elements of narrow types are held in f32; a cast is where the precision is meant to be lost.
    if (to == from || !isWidened(to)) return result;
    return plan::visitElement<&plan::ElementFacts::isWidened>(
        planType(to), [&](auto element) { return roundTo(a, result, element); });
  }
  if (to.isInteger(1)) {
    if (isFloat(from)) return a.compare(CmpFPredicate::UNE, x, a.constant(x.getType(), 0.0));
    return a.compare(CmpIPredicate::ne, x, a.integer(x.getType(), 0));
  }
  if (isFloat(from)) return floatToInteger(a, x, x.getType(), type, to.isUnsignedInteger());
  unsigned fromWidth = from.getIntOrFloatBitWidth(), toWidth = to.getIntOrFloatBitWidth();
  if (fromWidth > toWidth) return arith::TruncIOp::create(a.b, a.loc, type, x);
  if (fromWidth == toWidth) return x;
  if (isUnsigned(from)) return arith::ExtUIOp::create(a.b, a.loc, type, x);
  return arith::ExtSIOp::create(a.b, a.loc, type, x);
}

// Emits `op` if it is an Op; null otherwise.
template <typename Op>
static Value emitIf(ArithBuilder& a, Operation* op, ValueRange operands) {
  if constexpr (requires(Op typed) { typed.emitElement(a, operands); })
    if (auto typed = dyn_cast<Op>(op)) return typed.emitElement(a, operands);
  return {};
}

template <typename... Ops>
static Value emitOneOf(ArithBuilder& a, Operation* op, ValueRange operands) {
  Value result;
  (void)((result = emitIf<Ops>(a, op, operands)) || ...);
  return result;
}

Value emitElementOp(ArithBuilder& a, Operation* op, ValueRange operands) {
  return emitOneOf<
#define GET_OP_LIST
#include "ir/Train/TrainOpList.inc"
      >(a, op, operands);
}

}  // namespace sheaf::codegen
