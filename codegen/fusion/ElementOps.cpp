#include "codegen/fusion/ElementOps.h"

#include <cmath>

#include "codegen/fusion/MathFunctions.h"
#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace sheaf::train;
using arith::CmpFPredicate;
using arith::CmpIPredicate;

namespace sheaf::codegen {

Type computeType(Type element, MLIRContext* context) {
  if (element.isF64()) return Float64Type::get(context);
  if (isa<FloatType>(element)) return Float32Type::get(context);
  return IntegerType::get(context, element.getIntOrFloatBitWidth());
}

bool isElementOp(Operation* op) {
  return isa<NegOp, AbsOp, SignOp, ExpOp, LogOp, SqrtOp, RsqrtOp, ReciprocalOp, TanhOp, SigmoidOp, ErfOp, ReluOp, SinOp,
             CosOp, FloorOp, CeilOp, RoundOp, NotOp, IsNanOp, CastOp, AddOp, SubOp, MulOp, DivOp, PowOp, MinOp, MaxOp,
             ModOp, AndOp, OrOp, XorOp, CompareOp, SelectOp, FmaOp>(op);
}

namespace {

Type elementType(Value v) {
  return cast<RankedTensorType>(v.getType()).getElementType();
}
bool isFloat(Type element) {
  return isa<FloatType>(element);
}
// Booleans and unsigned integers.
bool isUnsigned(Type element) {
  return element.isInteger(1) || element.isUnsignedInteger();
}

Value emitSign(ArithBuilder& a, Value x, bool isFloat) {
  Type type = x.getType();
  if (isFloat) {
    Value zero = a.constant(type, 0.0);
    Value result = a.select(a.compare(CmpFPredicate::OLT, x, zero), a.constant(type, -1.0), x);
    return a.select(a.compare(CmpFPredicate::OGT, x, zero), a.constant(type, 1.0), result);
  }
  Value zero = a.integer(type, 0);
  Value result = a.select(a.compare(CmpIPredicate::slt, x, zero), a.integer(type, -1), zero);
  return a.select(a.compare(CmpIPredicate::sgt, x, zero), a.integer(type, 1), result);
}

Value emitExtremum(ArithBuilder& a, Value x, Value y, Type element, bool larger) {
  if (isFloat(element)) return larger ? a.maximum(x, y) : a.minimum(x, y);
  auto predicate = isUnsigned(element) ? (larger ? CmpIPredicate::ugt : CmpIPredicate::ult)
                                       : (larger ? CmpIPredicate::sgt : CmpIPredicate::slt);
  return a.select(a.compare(predicate, x, y), x, y);
}

struct Division {
  Value quotient, remainder;
};

// Integer division that traps nowhere: by zero it gives zero, by -1 it negates (which may wrap).
Division emitIntegerDivision(ArithBuilder& a, Value x, Value y, Type element) {
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

Value emitMod(ArithBuilder& a, ModOp op, Value x, Value y) {
  Type element = elementType(op.getLhs());
  Type type = x.getType();
  if (isFloat(element)) {
    Value r = emitFmod(a, x, y);
    if (op.getFmod()) return r;
    Value zero = a.constant(type, 0.0);
    Value differs = a.bitXor(a.compare(CmpFPredicate::OLT, r, zero), a.compare(CmpFPredicate::OLT, y, zero));
    Value adjust = a.bitAnd(differs, a.compare(CmpFPredicate::ONE, r, zero));
    return a.select(adjust, a.add(r, y), r);
  }
  Value r = emitIntegerDivision(a, x, y, element).remainder;
  if (op.getFmod() || isUnsigned(element)) return r;
  Value zero = a.integer(type, 0);
  Value differs = a.bitXor(a.compare(CmpIPredicate::slt, r, zero), a.compare(CmpIPredicate::slt, y, zero));
  Value adjust = a.bitAnd(differs, a.compare(CmpIPredicate::ne, r, zero));
  return a.select(adjust, a.add(r, y), r);
}

Value emitCompare(ArithBuilder& a, CompareOp op, Value x, Value y) {
  static const CmpFPredicate floats[] = {CmpFPredicate::OEQ, CmpFPredicate::UNE, CmpFPredicate::OLT,
                                         CmpFPredicate::OLE, CmpFPredicate::OGT, CmpFPredicate::OGE};
  static const CmpIPredicate signedOnes[] = {CmpIPredicate::eq,  CmpIPredicate::ne,  CmpIPredicate::slt,
                                             CmpIPredicate::sle, CmpIPredicate::sgt, CmpIPredicate::sge};
  static const CmpIPredicate unsignedOnes[] = {CmpIPredicate::eq,  CmpIPredicate::ne,  CmpIPredicate::ult,
                                               CmpIPredicate::ule, CmpIPredicate::ugt, CmpIPredicate::uge};
  auto which = static_cast<uint32_t>(op.getPredicate());
  Type element = elementType(op.getLhs());
  if (isFloat(element)) return a.compare(floats[which], x, y);
  return a.compare(isUnsigned(element) ? unsignedOnes[which] : signedOnes[which], x, y);
}

// Rounds an f32 to the nearest value of a narrower format, ties to even, and stays f32.
Value roundTo(ArithBuilder& a, Value x, Type element) {
  if (element.isBF16()) return a.fromBf16Bits(a.toBf16Bits(x));
  Type narrow = ArithBuilder::withElement(x.getType(), a.b.getF16Type());
  Value rounded = arith::TruncFOp::create(a.b, a.loc, narrow, x);
  return arith::ExtFOp::create(a.b, a.loc, x.getType(), rounded);
}

// Float to integer: truncates; what is out of range saturates and NaN is zero, where the bare instruction is undefined.
Value floatToInteger(ArithBuilder& a, Value x, Type from, Type to, bool isUnsigned) {
  // The limits as floats that the conversion of their own type can take.
  unsigned width = ArithBuilder::elementOf(to).getIntOrFloatBitWidth();
  int precision = ArithBuilder::elementOf(from).isF64() ? 53 : 24;
  int bits = static_cast<int>(isUnsigned ? width : width - 1);
  double power = std::ldexp(1.0, bits);
  double high = bits > precision ? power - std::ldexp(1.0, bits - precision) : power - 1.0;
  x = a.select(a.isNan(x), a.constant(from, 0.0), x);
  x = a.clamp(x, isUnsigned ? 0.0 : -power, high);
  if (isUnsigned) return arith::FPToUIOp::create(a.b, a.loc, to, x);
  return arith::FPToSIOp::create(a.b, a.loc, to, x);
}

Value emitCast(ArithBuilder& a, CastOp op, Value x) {
  Type from = elementType(op.getOperand()), to = elementType(op.getResult());
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
    return to != from && (to.isBF16() || to.isF16()) ? roundTo(a, result, to) : result;
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

}  // namespace

Value emitElementOp(ArithBuilder& a, Operation* op, ValueRange v) {
  Type type = v[0].getType();
  Type element = elementType(op->getOperand(0));
  auto one = [&] { return a.constant(type, 1.0); };
  return TypeSwitch<Operation*, Value>(op)
      .Case<NegOp>([&](auto) { return a.neg(v[0]); })
      .Case<AbsOp>([&](auto) { return isUnsigned(element) ? v[0] : a.abs(v[0]); })
      .Case<SignOp>([&](auto) { return emitSign(a, v[0], isFloat(element)); })
      .Case<ExpOp>([&](auto) { return emitExp(a, v[0]); })
      .Case<LogOp>([&](auto) { return emitLog(a, v[0]); })
      .Case<SqrtOp>([&](auto) { return a.sqrt(v[0]); })
      .Case<RsqrtOp>([&](auto) { return a.div(one(), a.sqrt(v[0])); })
      .Case<ReciprocalOp>([&](auto) { return a.div(one(), v[0]); })
      .Case<TanhOp>([&](auto) { return emitTanh(a, v[0]); })
      .Case<SigmoidOp>([&](auto) { return emitSigmoid(a, v[0]); })
      .Case<ErfOp>([&](auto) { return emitErf(a, v[0]); })
      .Case<ReluOp>([&](auto) {
        if (!isFloat(element)) return emitExtremum(a, v[0], a.integer(type, 0), element, true);
        Value zero = a.constant(type, 0.0);
        return a.select(a.compare(CmpFPredicate::OLT, v[0], zero), zero, v[0]);
      })
      .Case<SinOp>([&](auto) { return emitSin(a, v[0]); })
      .Case<CosOp>([&](auto) { return emitCos(a, v[0]); })
      .Case<FloorOp>([&](auto) { return isFloat(element) ? a.floor(v[0]) : v[0]; })
      .Case<CeilOp>([&](auto) { return isFloat(element) ? a.ceil(v[0]) : v[0]; })
      .Case<RoundOp>([&](auto) { return isFloat(element) ? a.roundEven(v[0]) : v[0]; })
      .Case<NotOp>([&](auto) { return a.bitXor(v[0], a.boolean(type, true)); })
      .Case<IsNanOp>([&](auto) { return a.isNan(v[0]); })
      .Case<CastOp>([&](CastOp cast) { return emitCast(a, cast, v[0]); })
      .Case<AddOp>([&](auto) { return a.add(v[0], v[1]); })
      .Case<SubOp>([&](auto) { return a.sub(v[0], v[1]); })
      .Case<MulOp>([&](auto) { return a.mul(v[0], v[1]); })
      .Case<DivOp>([&](auto) {
        return isFloat(element) ? a.div(v[0], v[1]) : emitIntegerDivision(a, v[0], v[1], element).quotient;
      })
      .Case<PowOp>([&](auto) { return emitPow(a, v[0], v[1]); })
      .Case<MinOp>([&](auto) { return emitExtremum(a, v[0], v[1], element, false); })
      .Case<MaxOp>([&](auto) { return emitExtremum(a, v[0], v[1], element, true); })
      .Case<ModOp>([&](ModOp mod) { return emitMod(a, mod, v[0], v[1]); })
      .Case<AndOp>([&](auto) { return a.bitAnd(v[0], v[1]); })
      .Case<OrOp>([&](auto) { return a.bitOr(v[0], v[1]); })
      .Case<XorOp>([&](auto) { return a.bitXor(v[0], v[1]); })
      .Case<CompareOp>([&](CompareOp compare) { return emitCompare(a, compare, v[0], v[1]); })
      .Case<SelectOp>([&](auto) { return a.select(v[0], v[1], v[2]); })
      .Case<FmaOp>([&](auto) { return a.fma(v[0], v[1], v[2]); })
      .Default([](Operation*) { return Value(); });
}

}  // namespace sheaf::codegen
