#include "codegen/fusion/MathFunctions.h"

#include "codegen/fusion/MathDetail.h"

using namespace mlir;
using arith::CmpFPredicate;

namespace sheaf::codegen {

Rounded roundToInteger(ArithBuilder& a, Value x) {
  Format format(x.getType());
  Value magic = a.constant(x.getType(), format.magic());
  Value shifted = a.add(x, magic);
  Type bits = ArithBuilder::bitsOf(x.getType());
  return {a.sub(shifted, magic), a.sub(a.bitcast(bits, shifted), a.bitcast(bits, magic))};
}

namespace {

struct Exponential {
  Value power;      // k, an integer of the float's width: e^x = 2^k (1 + remainder)
  Value remainder;  // in [sqrt(1/2) - 1, sqrt(2) - 1]
};

// Of high + low, where low is a small correction (or null). Meaningless where e^x is out of range; NaN stays NaN.
Exponential splitExponential(ArithBuilder& a, Value high, Value low) {
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
  return {k.bits, a.fma(a.mul(r, r), polynomial(a, r, f32, f64), r)};
}

// A result below the normal range is rounded to a subnormal number, or flushed to 0, which is
// faster.
enum class Underflow { gradual, flushed };

// 2^-halvings e^high, by the exponential of high.
Value scaleExponential(ArithBuilder& a, Exponential e, Value high, int halvings, Underflow underflow) {
  Type type = high.getType();
  Format format(type);
  Value p = a.add(e.remainder, a.constant(type, 1.0));
  // Times 2^k: into the exponent's bits. Where that overflows the result is a constant, and NaN stays what it was.
  Type bits = ArithBuilder::bitsOf(type);
  Value k = halvings ? a.sub(e.power, a.integer(bits, halvings)) : e.power;
  double shift = halvings * 0.693147;
  Value highest = a.constant(type, (format.isDouble ? 709.78271289338397 : 88.7228317f) + shift);
  double normal = (format.isDouble ? -708.39641853226408 : -87.3365402f) + shift;
  double lowest = normal;
  Value isSubnormal;
  if (underflow == Underflow::gradual) {
    // 2^64 times too large at first, so that the last multiplication alone rounds.
    lowest = (format.isDouble ? -745.2 : -104.0) + shift;
    isSubnormal = a.compare(CmpFPredicate::OLT, high, a.constant(type, normal));
    k = a.select(isSubnormal, a.add(k, a.integer(bits, 64)), k);
  }
  p = a.bitcast(type, a.add(a.bitcast(bits, p), a.shiftLeft(k, format.mantissa())));
  // An unordered comparison also takes NaN here; adding x to infinity then keeps it.
  p = a.select(a.compare(CmpFPredicate::UGT, high, highest), a.add(high, a.constant(type, kInfinity)), p);
  p = a.select(a.compare(CmpFPredicate::OLT, high, a.constant(type, lowest)), a.constant(type, 0.0), p);
  if (underflow == Underflow::flushed) return p;
  return a.mul(p, a.select(isSubnormal, a.constant(type, 0x1p-64), a.constant(type, 1.0)));
}

// e^(high + low), where low is a small correction (or null), and where a subnormal result is as good as 0.
Value expOfSum(ArithBuilder& a, Value high, Value low) {
  return scaleExponential(a, splitExponential(a, high, low), high, 0, Underflow::flushed);
}

// e^x / 2, which overflows where sinh and cosh do.
Value halfExp(ArithBuilder& a, Value x) {
  return scaleExponential(a, splitExponential(a, x, {}), x, 1, Underflow::flushed);
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

// log(x) of a positive finite x.
Value logOfPositive(ArithBuilder& a, Value x) {
  return Format(x.getType()).isDouble ? logOfF64(a, x) : logOfF32(a, x);
}

// log1p(u), but log(2x) where x is so large that adding 1 does not change it and its square might overflow.
Value log1pOrLogOfTwice(ArithBuilder& a, Value u, Value x) {
  Type type = x.getType();
  Value limit = a.constant(type, Format(type).isDouble ? 0x1p60 : 0x1p30);
  Value isLarge = a.compare(CmpFPredicate::OGT, x, limit);
  Value result = emitLog1p(a, a.select(isLarge, x, u));
  return a.select(isLarge, a.add(result, a.constant(type, 0.69314718055994530942)), result);
}

}  // namespace

Value emitExp(ArithBuilder& a, Value x) {
  return scaleExponential(a, splitExponential(a, x, {}), x, 0, Underflow::gradual);
}

Value emitLog(ArithBuilder& a, Value x) {
  return specialLog(a, x, logOfPositive(a, x));
}

// 2^k (1 + p) - 1 = 2^k p + (2^k - 1), where 2^k - 1 is exact or the subtraction of 1 makes no difference.
Value emitExpm1(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Format format(type);
  Exponential e = splitExponential(a, x, {});
  Value biased = a.add(e.power, a.integer(e.power.getType(), format.bias()));
  Value power = a.bitcast(type, a.shiftLeft(biased, format.mantissa())), one = a.constant(type, 1.0);
  Value result = a.fma(power, e.remainder, a.sub(power, one));
  double limit = format.isDouble ? 40 : 20;
  Value isLarge = a.compare(CmpFPredicate::OGT, x, a.constant(type, limit));
  result = a.select(isLarge, scaleExponential(a, e, x, 0, Underflow::flushed), result);
  result = a.select(a.compare(CmpFPredicate::OLT, x, a.constant(type, -limit)), a.constant(type, -1.0), result);
  return a.select(a.compare(CmpFPredicate::OEQ, x, a.constant(type, 0.0)), x, result);  // keeps the zero's sign
}

// With u = 1 + x as rounded and c the rounding error of that sum: log(u + c) = log(u) + c / u.
Value emitLog1p(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Value one = a.constant(type, 1.0), u = a.add(x, one);
  Value isLarger = a.compare(CmpFPredicate::OGE, a.abs(x), one);
  Value larger = a.select(isLarger, x, one), smaller = a.select(isLarger, one, x);
  Value error = a.sub(smaller, a.sub(u, larger));
  Value result = specialLog(a, u, a.add(logOfPositive(a, u), a.div(error, u)));
  return a.select(a.compare(CmpFPredicate::OEQ, x, a.constant(type, 0.0)), x, result);  // keeps the zero's sign
}

Value emitSigmoid(ArithBuilder& a, Value x) {
  Value one = a.constant(x.getType(), 1.0);
  return a.div(one, a.add(one, expOfSum(a, a.neg(x), {})));
}

// max(x, 0) + log1p(e^-|x|), which neither overflows nor loses e^x below 0.
Value emitSoftplus(ArithBuilder& a, Value x) {
  Value zero = a.constant(x.getType(), 0.0);
  Value positive = a.select(a.compare(CmpFPredicate::OLE, x, zero), zero, x);
  return a.add(positive, emitLog1p(a, emitExp(a, a.neg(a.abs(x)))));
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
  Value near = a.fma(a.mul(x, s), polynomial(a, s, f32, f64), x);
  Value e = expOfSum(a, a.add(magnitude, magnitude), {});
  Value far = a.sub(one, a.div(a.constant(type, 2.0), a.add(e, one)));
  Value isNear = a.compare(CmpFPredicate::OLT, magnitude, a.constant(type, format.isDouble ? 0.625 : 0.55));
  return a.copySign(a.select(isNear, near, far), x);  // near zero for the zero's own sign
}

Value emitSinh(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Value magnitude = a.abs(x), s = a.mul(x, x);
  static const double f32[] = {2.8169515165735647e-6, 0.00019836159717611813, 0.0083333500585650185,
                               0.16666666497553609};
  static const double f64[] = {7.7587493149959909e-13, 1.6057259750988516e-10, 2.5052123136964397e-8,
                               2.7557319157070243e-6,  0.00019841269841431878, 0.0083333333333331477,
                               0.16666666666666667};
  // Near zero the difference of the exponentials cancels.
  Value near = a.fma(a.mul(x, s), polynomial(a, s, f32, f64), x);
  Value half = halfExp(a, magnitude);
  Value far = a.sub(half, a.div(a.constant(type, 0.25), half));
  return a.select(a.compare(CmpFPredicate::OLT, magnitude, a.constant(type, 1.0)), near, a.copySign(far, x));
}

Value emitCosh(ArithBuilder& a, Value x) {
  Value half = halfExp(a, a.abs(x));
  return a.add(half, a.div(a.constant(x.getType(), 0.25), half));
}

// asinh(t) = log(t + sqrt(t^2 + 1)) = log1p(t + t^2 / (1 + sqrt(t^2 + 1))), which does not cancel near zero.
Value emitAsinh(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Value t = a.abs(x), one = a.constant(type, 1.0), s = a.mul(t, t);
  Value u = a.add(t, a.div(s, a.add(one, a.sqrt(a.add(s, one)))));
  return a.copySign(log1pOrLogOfTwice(a, u, t), x);
}

// acosh(x) = log(x + sqrt(x^2 - 1)) = log1p(t + sqrt(t^2 + 2t)) with t = x - 1.
Value emitAcosh(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Value one = a.constant(type, 1.0), t = a.sub(x, one);
  Value u = a.add(t, a.sqrt(a.fma(t, t, a.add(t, t))));
  Value result = log1pOrLogOfTwice(a, u, x);
  return a.select(a.compare(CmpFPredicate::OLT, x, one), a.constant(type, kNan), result);
}

// atanh(t) = log((1 + t) / (1 - t)) / 2 = log1p(2t / (1 - t)) / 2.
Value emitAtanh(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Value t = a.abs(x), ratio = a.div(a.add(t, t), a.sub(a.constant(type, 1.0), t));
  return a.copySign(a.mul(a.constant(type, 0.5), emitLog1p(a, ratio)), x);
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
  Value near = a.fma(x, polynomial(a, s, near32, near64), x);
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
    far = a.sub(one, expOfSum(a, a.fma(a.polynomial(t, p), t, a.neg(t)), {}));
  }
  Value isNear = a.compare(CmpFPredicate::OLT, t, one);
  return a.select(isNear, near, a.copySign(far, x));
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
  Value result = expOfSum(a, a.mul(y, emitLog(a, magnitude)), {});
  // A negative base: a sign for odd integers, NaN for other numbers. From 2^53 on all floats are even.
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
