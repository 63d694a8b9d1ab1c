#include "codegen/fusion/MathFunctions.h"

#include <limits>

using namespace mlir;
using arith::CmpFPredicate;
using arith::CmpIPredicate;

namespace sheaf::codegen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The layout of a float type, and the constant whose addition rounds to an integer in the low bits of the mantissa.
struct Format {
  explicit Format(Type type) : isDouble(ArithBuilder::elementOf(type).isF64()) {}
  bool isDouble;
  int mantissa() const { return isDouble ? 52 : 23; }
  int bias() const { return isDouble ? 1023 : 127; }
  double magic() const { return isDouble ? 0x1.8p52 : 0x1.8p23; }
};

struct Rounded {
  Value value;  // the nearest integer, as a float
  Value bits;   // the same as an integer of the float's width
};

// Rounds by adding the magic constant: unlike a conversion it is defined, if meaningless, for NaN.
Rounded roundToInteger(ArithBuilder& a, Value x) {
  Format format(x.getType());
  Value magic = a.constant(x.getType(), format.magic());
  Value shifted = a.add(x, magic);
  Type bits = ArithBuilder::bitsOf(x.getType());
  return {a.sub(shifted, magic), a.sub(a.bitcast(bits, shifted), a.bitcast(bits, magic))};
}

// e^(high + low), where low is a small correction (or null). Subnormal results are zero.
Value expOfSum(ArithBuilder& a, Value high, Value low) {
  Type type = high.getType();
  Format format(type);
  Rounded k = roundToInteger(a, a.mul(high, a.constant(type, 1.4426950408889634074)));
  Value ln2High = a.constant(type, format.isDouble ? 0.69314718036912381649 : 0.693145751953125);
  Value ln2Low = a.constant(type, format.isDouble ? 1.9082149292705878161e-10 : 1.42860682031e-6);
  Value r = a.fma(k.value, a.neg(ln2High), high);
  r = a.fma(k.value, a.neg(ln2Low), r);
  if (low) r = a.add(r, low);
  static const double f32[] = {0.0013926183587713495, 0.0083631790527225774, 0.041666554617204574, 0.16666576989698776,
                               0.5};
  static const double f64[] = {2.0914686968086877e-9,
                               2.5105217004720745e-8,
                               2.7557273643110295e-7,
                               2.7557255400206424e-6,
                               2.4801587325547741e-5,
                               0.00019841269874820625,
                               0.0013888888888883748,
                               0.0083333333333261351,
                               0.04166666666666667,
                               0.16666666666666671,
                               0.5};
  Value p = format.isDouble ? a.polynomial(r, f64) : a.polynomial(r, f32);
  p = a.fma(a.mul(r, r), p, r);
  p = a.add(p, a.constant(type, 1.0));
  // Times 2^k: into the exponent's bits. Where that overflows the result is a constant, and NaN stays what it was.
  Type bits = ArithBuilder::bitsOf(type);
  p = a.bitcast(type, a.add(a.bitcast(bits, p), a.shiftLeft(k.bits, format.mantissa())));
  Value highest = a.constant(type, format.isDouble ? 709.78271289338397 : 88.7228317f);
  Value lowest = a.constant(type, format.isDouble ? -708.39641853226408 : -87.3365402f);
  // An unordered comparison also takes NaN here; adding x to infinity then keeps it.
  p = a.select(a.compare(CmpFPredicate::UGT, high, highest), a.add(high, a.constant(type, kInfinity)), p);
  return a.select(a.compare(CmpFPredicate::OLT, high, lowest), a.constant(type, 0.0), p);
}

struct Decomposed {
  Value exponent;  // an integer, as a float
  Value mantissa;  // minus one: x = 2^exponent * (1 + mantissa)
};

// Splits a positive x so that 1 + mantissa lies in [2/3, 4/3) (f32) or [sqrt(1/2), sqrt(2)) (f64).
Decomposed splitExponent(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Format format(type);
  Type bits = ArithBuilder::bitsOf(type);
  // Subnormals are scaled into the normal range first.
  Value small = a.compare(CmpFPredicate::OLT, x, a.constant(type, format.isDouble ? 0x1p-1022 : 0x1p-126));
  x = a.select(small, a.mul(x, a.constant(type, format.isDouble ? 0x1p54 : 0x1p24)), x);
  Value scaled = a.select(small, a.constant(type, format.isDouble ? -54 : -24), a.constant(type, 0));
  Value i = a.bitcast(bits, x);
  Value lower = a.integer(bits, format.isDouble ? 0x3fe6a09e667f3bcdll : 0x3f2aaaabll);
  Value e = a.shiftRight(a.sub(i, lower), format.mantissa());
  Value m = a.bitcast(type, a.sub(i, a.shiftLeft(e, format.mantissa())));
  Value exponent = a.add(arith::SIToFPOp::create(a.b, a.loc, type, e).getResult(), scaled);
  return {exponent, a.sub(m, a.constant(type, 1.0))};
}

// log's values where x is not a positive finite number.
Value specialLog(ArithBuilder& a, Value x, Value result) {
  Type type = x.getType();
  Value zero = a.constant(type, 0.0);
  result = a.select(a.compare(CmpFPredicate::OLT, x, a.constant(type, kInfinity)), result, x);
  result = a.select(a.compare(CmpFPredicate::OEQ, x, zero), a.constant(type, -kInfinity), result);
  return a.select(a.compare(CmpFPredicate::OLT, x, zero), a.constant(type, kNan), result);
}

Value logOfF64(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Decomposed d = splitExponent(a, x);
  // log(1 + f) = 2 atanh(g), g = f / (2 + f); written as f - (f^2/2 - s (f^2/2 + r)) so that f is not rounded away.
  Value f = d.mantissa;
  Value g = a.div(f, a.add(f, a.constant(type, 2.0)));
  Value gg = a.mul(g, g);
  static const double c[] = {0.13088034850927554, 0.13268638369266824, 0.15386244737621667, 0.18181795547521136,
                             0.22222222392581045, 0.28571428570799785, 0.40000000000000883, 0.66666666666666666};
  Value r = a.mul(gg, a.polynomial(gg, c));
  Value halfSquare = a.mul(a.constant(type, 0.5), a.mul(f, f));
  Value low = a.fma(d.exponent, a.constant(type, 1.9082149292705878161e-10), a.mul(g, a.add(halfSquare, r)));
  Value result = a.sub(f, a.sub(halfSquare, low));
  return a.fma(d.exponent, a.constant(type, 0.69314718036912381649), result);
}

Value logOfF32(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Decomposed d = splitExponent(a, x);
  Value f = d.mantissa;
  static const double c[] = {-0.12125580650711652, 0.13425749011418576, -0.1234619024512849,  0.14118309902655241,
                             -0.1667014069140169,  0.20003780322455603, -0.24999987901255854, 0.3333332016834962};
  Value p = a.fma(f, a.polynomial(f, c), a.constant(type, -0.5));
  Value result = a.fma(a.mul(f, f), p, f);
  return a.fma(d.exponent, a.constant(type, 0.69314718055994530942), result);
}

struct Quadrant {
  Value remainder;  // in [-pi/4, pi/4]
  Value index;      // x / (pi/2) rounded, an integer of the argument's width
};

// f32 arguments are reduced in f64: one subtraction keeps all bits where a chain in f32 would lose them.
Quadrant reduceQuadrant(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Type wide = ArithBuilder::withElement(type, a.b.getF64Type());
  bool isDouble = type == wide;
  Value w = isDouble ? x : arith::ExtFOp::create(a.b, a.loc, wide, x).getResult();
  Rounded k = roundToInteger(a, a.mul(w, a.constant(wide, 0.63661977236758134308)));
  Value r = a.fma(k.value, a.constant(wide, -1.5707963267341256142), w);
  r = a.fma(k.value, a.constant(wide, -6.0771005035934605454e-11), r);
  if (isDouble) return {a.fma(k.value, a.constant(wide, -2.9127320560933561583e-20), r), k.bits};
  Type bits = ArithBuilder::bitsOf(type);
  return {arith::TruncFOp::create(a.b, a.loc, type, r), arith::TruncIOp::create(a.b, a.loc, bits, k.bits)};
}

// The sine of the remainder plus `turns` quarter turns.
Value sineOfQuadrant(ArithBuilder& a, Quadrant q, int64_t turns) {
  Type type = q.remainder.getType();
  Format format(type);
  Value r = q.remainder, s = a.mul(r, r), one = a.constant(type, 1.0);
  static const double sin32[] = {-0.00019587840521305324, 0.0083327480375171464, -0.16666664661114839};
  static const double cos32[] = {2.4547891619813861e-5, -0.001388830280230916, 0.041666664658300421};
  static const double sin64[] = {-7.5866850700912672e-13, 1.6058531414589011e-10, -2.5052106231157905e-8,
                                 2.7557319219335453e-6,   -0.0001984126984126506, 0.0083333333333333315,
                                 -0.16666666666666667};
  static const double cos64[] = {4.7458652037874551e-14, -1.1470460773969325e-11, 2.0876755790363396e-9,
                                 -2.755731922140076e-7,  2.4801587301584644e-5,   -0.0013888888888888888,
                                 0.041666666666666667};
  Value sine = a.fma(a.mul(r, s), format.isDouble ? a.polynomial(s, sin64) : a.polynomial(s, sin32), r);
  // 1 - s/2 loses bits that the third line adds back.
  Value half = a.mul(s, a.constant(type, 0.5)), head = a.sub(one, half);
  Value tail = a.sub(a.sub(one, head), half);
  tail = a.fma(a.mul(s, s), format.isDouble ? a.polynomial(s, cos64) : a.polynomial(s, cos32), tail);
  Value cosine = a.add(head, tail);

  Value turn = a.add(q.index, a.integer(q.index.getType(), turns));
  Value unit = a.integer(turn.getType(), 1), zero = a.integer(turn.getType(), 0);
  Value odd = a.compare(CmpIPredicate::ne, a.bitAnd(turn, unit), zero);
  Value result = a.select(odd, cosine, sine);
  Value negative = a.compare(CmpIPredicate::ne, a.bitAnd(turn, a.integer(turn.getType(), 2)), zero);
  return a.select(negative, a.neg(result), result);
}

}  // namespace

Value emitExp(ArithBuilder& a, Value x) {
  return expOfSum(a, x, {});
}

Value emitLog(ArithBuilder& a, Value x) {
  return specialLog(a, x, Format(x.getType()).isDouble ? logOfF64(a, x) : logOfF32(a, x));
}

Value emitSigmoid(ArithBuilder& a, Value x) {
  Value one = a.constant(x.getType(), 1.0);
  return a.div(one, a.add(one, emitExp(a, a.neg(x))));
}

Value emitTanh(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Format format(type);
  Value magnitude = a.abs(x), s = a.mul(x, x), one = a.constant(type, 1.0);
  static const double f32[] = {-0.0066102278311147345, 0.021309388664443474, -0.053909428827460545, 0.13333113729020872,
                               -0.3333333200797698};
  static const double f64[] = {-1.724487449484433e-5,  7.959955735264808e-5,  -0.00023077616269519858,
                               0.00058743728600943819, -0.001455309297534642, 0.0035920589774734553,
                               -0.0088632298309257087, 0.021869488260559115,  -0.053968253961395571,
                               0.13333333333326658,    -0.33333333333333323};
  // Near zero 1 - 2/(e^2x + 1) cancels.
  Value near = a.fma(a.mul(x, s), format.isDouble ? a.polynomial(s, f64) : a.polynomial(s, f32), x);
  Value e = emitExp(a, a.add(magnitude, magnitude));
  Value far = a.sub(one, a.div(a.constant(type, 2.0), a.add(e, one)));
  Value isNear = a.compare(CmpFPredicate::OLT, magnitude, a.constant(type, format.isDouble ? 0.625 : 0.55));
  return a.select(isNear, near, a.copySign(far, x));
}

Value emitErf(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Format format(type);
  Value t = a.abs(x), s = a.mul(x, x), one = a.constant(type, 1.0);
  static const double near32[] = {7.8758750626854883e-5, -0.00080168642871658695, 0.005189087423433974,
                                  -0.026854212010626412, 0.11283594715160218,     -0.37612626666720331,
                                  0.12837916584835095};
  static const double near64[] = {5.9571761477489114e-11, -1.1372848856791674e-9,  1.4659775274047436e-8,
                                  -1.6350312701054695e-7, 1.6461000484121368e-6,   -1.4925595266831182e-5,
                                  0.00012055331111642711, -0.00085483269808337899, 0.0052239776248180145,
                                  -0.026866170645076793,  0.11283791670954879,     -0.37612638903183748,
                                  0.12837916709551257};
  Value near = a.fma(x, format.isDouble ? a.polynomial(s, near64) : a.polynomial(s, near32), x);
  Value far;
  if (format.isDouble) {
    // erfc(t) = e^(-t^2) q((t - 5/2) / (t + 5/2)); beyond 6 it is below half an ulp of 1. The rounding of t^2 is
    // corrected in the exponent.
    static const double q[] = {6.961191560229168e-8,   3.4418924612955654e-7,  7.7733315974047853e-8,
                               -1.8020038653448608e-6, -2.2981102519735955e-6, 7.5525943231395023e-6,
                               1.8614457552080005e-5,  -3.4182238133315231e-5, -0.0001288771713312957,
                               0.00022838037890860081, 0.00087591545013376076, -0.0026423659642974032,
                               -0.003993701165858238,  0.039922539075584759,   -0.12503305237882931,
                               0.25171319321744931,    -0.37173673394897335,   0.21080636406114358};
    Value limited = a.clamp(t, 0.0, 6.0), c = a.constant(type, 2.5);
    Value u = a.div(a.sub(limited, c), a.add(limited, c));
    Value square = a.mul(limited, limited), error = a.fma(limited, limited, a.neg(square));
    far = a.sub(one, a.mul(expOfSum(a, a.neg(square), a.neg(error)), a.polynomial(u, q)));
  } else {
    // erfc(t) = e^(-t - t p(t)); the polynomial is fitted in absolute error of the result.
    static const double p[] = {-1.72853470e-5, 3.83197126e-4,  -3.88396438e-3, 2.42546219e-2,
                               -1.06777877e-1, -6.34846687e-1, -1.28717512e-1};
    far = a.sub(one, emitExp(a, a.fma(a.polynomial(t, p), t, a.neg(t))));
  }
  Value isNear = a.compare(CmpFPredicate::OLT, t, one);
  return a.select(isNear, near, a.copySign(far, x));
}

Value emitSin(ArithBuilder& a, Value x) {
  return sineOfQuadrant(a, reduceQuadrant(a, x), 0);
}

Value emitCos(ArithBuilder& a, Value x) {
  return sineOfQuadrant(a, reduceQuadrant(a, x), 1);
}

Value emitPow(ArithBuilder& a, Value x, Value y) {
  Type type = x.getType();
  Type wide = ArithBuilder::withElement(type, a.b.getF64Type());
  if (type != wide) {
    Value result = emitPow(a, arith::ExtFOp::create(a.b, a.loc, wide, x), arith::ExtFOp::create(a.b, a.loc, wide, y));
    return arith::TruncFOp::create(a.b, a.loc, type, result);
  }
  Value zero = a.constant(type, 0.0), one = a.constant(type, 1.0);
  Value magnitude = a.abs(x);
  Value result = emitExp(a, a.mul(y, emitLog(a, magnitude)));
  // A negative base: a sign for odd integers, NaN for what is no integer. From 2^53 on all floats are even.
  Value half = a.mul(y, a.constant(type, 0.5));
  Value integral = a.compare(CmpFPredicate::OEQ, a.floor(y), y);
  Value even = a.compare(CmpFPredicate::OEQ, a.floor(half), half);
  Value odd = a.bitAnd(integral, a.bitXor(even, a.boolean(type, true)));
  Value signedResult = a.select(odd, a.copySign(result, x), result);
  Value infinite = a.compare(CmpFPredicate::OEQ, magnitude, a.constant(type, kInfinity));
  Value isZero = a.compare(CmpFPredicate::OEQ, x, zero);
  Value defined = a.bitOr(integral, a.bitOr(infinite, isZero));
  Value negative = a.compare(CmpFPredicate::OLT, x, zero);
  result = a.select(a.bitAnd(negative, a.bitXor(defined, a.boolean(type, true))), a.constant(type, kNan), signedResult);
  // x^0 and 1^y are 1, NaN or not; so is (-1)^infinity.
  Value unit = a.bitOr(a.compare(CmpFPredicate::OEQ, y, zero), a.compare(CmpFPredicate::OEQ, x, one));
  Value endless = a.compare(CmpFPredicate::OEQ, a.abs(y), a.constant(type, kInfinity));
  unit = a.bitOr(unit, a.bitAnd(endless, a.compare(CmpFPredicate::OEQ, magnitude, one)));
  return a.select(unit, one, result);
}

Value emitFmod(ArithBuilder& a, Value x, Value y) {
  Type type = x.getType();
  Type wide = ArithBuilder::withElement(type, a.b.getF64Type());
  if (type != wide) {
    Value result = emitFmod(a, arith::ExtFOp::create(a.b, a.loc, wide, x), arith::ExtFOp::create(a.b, a.loc, wide, y));
    return arith::TruncFOp::create(a.b, a.loc, type, result);
  }
  Value u = a.abs(x), v = a.abs(y), zero = a.constant(type, 0.0);
  Value r = a.fma(a.neg(a.truncate(a.div(u, v))), v, u);
  // The quotient may have been rounded up to the next integer, or down from it.
  r = a.select(a.compare(CmpFPredicate::OLT, r, zero), a.add(r, v), r);
  r = a.select(a.compare(CmpFPredicate::OGE, r, v), a.sub(r, v), r);
  Value finite = a.compare(CmpFPredicate::OLT, u, a.constant(type, kInfinity));
  Value limitless = a.bitAnd(finite, a.compare(CmpFPredicate::OEQ, v, a.constant(type, kInfinity)));
  return a.copySign(a.select(limitless, u, r), x);
}

}  // namespace sheaf::codegen
