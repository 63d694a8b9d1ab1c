// Sine, cosine, tangent and their inverses.
#include "codegen/fusion/MathDetail.h"
#include "codegen/fusion/MathFunctions.h"

using namespace mlir;
using arith::CmpFPredicate;
using arith::CmpIPredicate;

namespace sheaf::codegen {
namespace {

struct Quadrant {
  Value remainder;  // in [-pi/4, pi/4]
  Value index;      // x / (pi/2) rounded, an integer of the argument's width
};

// Up to here three multiples of parts of pi/2 leave the remainder: of an f32 with 1e-10, of an f64 without a quadrant
// that is wrong.
constexpr double kLargestF32 = 0x1p31, kLargestF64 = 0x1p50;

// An f32, as f64, times 2/pi modulo 4: the product with each 29 bits of 2/pi is exact, and so is its remainder.
Value quadrantsOfLarge(ArithBuilder& a, Value w) {
  static const double bits[] = {0x1.45f306dp-1,  0x1.9391054p-30,  0x1.4fe13abp-59,
                                0x1.d1f534dp-88, 0x1.b81b6c5p-117, 0x1.5993c4p-148};
  Type wide = w.getType();
  Value sum;
  for (double part : bits) {
    Value product = a.mul(w, a.constant(wide, part));
    Value turns = a.roundEven(a.mul(product, a.constant(wide, 0.25)));
    Value rest = a.fma(turns, a.constant(wide, -4.0), product);
    sum = sum ? a.add(sum, rest) : rest;
  }
  return sum;
}

// f32 arguments are reduced in f64: one subtraction keeps all bits where a chain in f32 would lose them. Large ones
// are reduced by bits of 2/pi; those of f64 give NaN.
Quadrant reduceQuadrant(ArithBuilder& a, Value x) {
  Type type = x.getType();
  Type wide = ArithBuilder::withElement(type, a.b.getF64Type());
  bool isDouble = type == wide;
  Value w = isDouble ? x : arith::ExtFOp::create(a.b, a.loc, wide, x).getResult();
  Rounded k = roundToInteger(a, a.mul(w, a.constant(wide, 0.63661977236758134308)));
  Value r = a.fma(k.value, a.constant(wide, -1.5707963267341256142), w);
  r = a.fma(k.value, a.constant(wide, -6.0771005035934605454e-11), r);
  Value isInRange = a.compare(CmpFPredicate::OLT, a.abs(w), a.constant(wide, isDouble ? kLargestF64 : kLargestF32));
  if (isDouble) {
    r = a.fma(k.value, a.constant(wide, -2.9127320560933561583e-20), r);
    return {a.select(isInRange, r, a.constant(wide, kNan)), k.bits};
  }
  Value quadrants = quadrantsOfLarge(a, w);
  Rounded large = roundToInteger(a, quadrants);
  r = a.select(isInRange, r, a.mul(a.sub(quadrants, large.value), a.constant(wide, 1.5707963267948966)));
  Value index = a.select(isInRange, k.bits, large.bits);
  Type bits = ArithBuilder::bitsOf(type);
  return {arith::TruncFOp::create(a.b, a.loc, type, r), arith::TruncIOp::create(a.b, a.loc, bits, index)};
}

Value sineOfRemainder(ArithBuilder& a, Value r) {
  static const double f32[] = {-0.00019587840521305324, 0.0083327480375171464, -0.16666664661114839};
  static const double f64[] = {-7.5866850700912672e-13, 1.6058531414589011e-10, -2.5052106231157905e-8,
                               2.7557319219335453e-6,   -0.0001984126984126506, 0.0083333333333333315,
                               -0.16666666666666667};
  Value s = a.mul(r, r);
  return a.fma(a.mul(r, s), polynomial(a, s, f32, f64), r);
}

Value cosineOfRemainder(ArithBuilder& a, Value r) {
  Type type = r.getType();
  static const double f32[] = {2.4547891619813861e-5, -0.001388830280230916, 0.041666664658300421};
  static const double f64[] = {4.7458652037874551e-14, -1.1470460773969325e-11, 2.0876755790363396e-9,
                               -2.755731922140076e-7,  2.4801587301584644e-5,   -0.0013888888888888888,
                               0.041666666666666667};
  // 1 - s/2 loses bits that the second line adds back.
  Value one = a.constant(type, 1.0), s = a.mul(r, r), half = a.mul(s, a.constant(type, 0.5)), head = a.sub(one, half);
  Value tail = a.sub(a.sub(one, head), half);
  return a.add(head, a.fma(a.mul(s, s), polynomial(a, s, f32, f64), tail));
}

// Whether bit `bit` of the index is set.
Value hasBit(ArithBuilder& a, Value index, int64_t bit) {
  Type type = index.getType();
  return a.compare(CmpIPredicate::ne, a.bitAnd(index, a.integer(type, bit)), a.integer(type, 0));
}

// The sine of the remainder plus `turns` quarter turns.
Value sineOfQuadrant(ArithBuilder& a, Quadrant q, int64_t turns) {
  Value sine = sineOfRemainder(a, q.remainder), cosine = cosineOfRemainder(a, q.remainder);
  Value turn = a.add(q.index, a.integer(q.index.getType(), turns));
  Value result = a.select(hasBit(a, turn, 1), cosine, sine);
  return a.select(hasBit(a, turn, 2), a.neg(result), result);
}

// pi/2 as the sum of two numbers of the type.
struct HalfPi {
  HalfPi(ArithBuilder& a, Type type)
      : high(a.constant(type, 1.5707963267948966)),
        low(a.constant(type, Format(type).isDouble ? 6.123233995736766e-17 : -4.371139000186241e-8)) {}
  Value high, low;
};

struct ArcSine {
  Value magnitude;  // |x|
  Value isLarge;    // |x| >= 1/2
  Value value;      // asin(x), but where |x| is large: asin(sqrt((1 - |x|) / 2)) = (pi/2 - asin(|x|)) / 2
};

ArcSine reduceArcSine(ArithBuilder& a, Value x) {
  Type type = x.getType();
  static const double f32[] = {0.04216609293618595, 0.024179650565595839, 0.045470346941660774, 0.074952978790662193,
                               0.16666752476446976};
  static const double f64[] = {0.03191220677236837,  -0.016224161894299334, 0.019528208235081181, 0.006527995612772073,
                               0.012169207071490013, 0.013885236141942249,  0.017359704696202859, 0.022371758054840493,
                               0.030381959136788614, 0.044642856828332137,  0.075000000003370116, 0.16666666666665409};
  Value half = a.constant(type, 0.5), t = a.abs(x);
  Value isLarge = a.compare(CmpFPredicate::OGE, t, half);
  Value square = a.select(isLarge, a.fma(t, a.neg(half), half), a.mul(x, x));
  Value root = a.select(isLarge, a.sqrt(square), x);
  return {t, isLarge, a.fma(a.mul(root, square), polynomial(a, square, f32, f64), root)};
}

}  // namespace

Value emitSin(ArithBuilder& a, Value x) {
  return sineOfQuadrant(a, reduceQuadrant(a, x), 0);
}

Value emitCos(ArithBuilder& a, Value x) {
  return sineOfQuadrant(a, reduceQuadrant(a, x), 1);
}

Value emitTan(ArithBuilder& a, Value x) {
  Quadrant q = reduceQuadrant(a, x);
  Value sine = sineOfRemainder(a, q.remainder), cosine = cosineOfRemainder(a, q.remainder);
  Value isOdd = hasBit(a, q.index, 1);
  return a.div(a.select(isOdd, a.neg(cosine), sine), a.select(isOdd, sine, cosine));
}

Value emitAsin(ArithBuilder& a, Value x) {
  ArcSine s = reduceArcSine(a, x);
  HalfPi halfPi(a, x.getType());
  Value large = a.add(a.fma(a.constant(x.getType(), -2.0), s.value, halfPi.low), halfPi.high);
  return a.select(s.isLarge, a.copySign(large, x), s.value);
}

Value emitAcos(ArithBuilder& a, Value x) {
  ArcSine s = reduceArcSine(a, x);
  HalfPi halfPi(a, x.getType());
  Value twice = a.add(s.value, s.value);
  Value pi = a.add(halfPi.high, halfPi.high), piLow = a.add(halfPi.low, halfPi.low);
  Value negative = a.compare(CmpFPredicate::OLT, x, a.constant(x.getType(), 0.0));
  Value large = a.select(negative, a.sub(pi, a.sub(twice, piLow)), twice);
  return a.select(s.isLarge, large, a.sub(halfPi.high, a.sub(s.value, halfPi.low)));
}

// atan(t) = c + atan(q): above tan(3 pi/8), c = pi/2 and q = -1/t; above tan(pi/8), c = pi/4 and
// q = (t - 1) / (t + 1); c = 0 and q = t else.
Value emitAtan(ArithBuilder& a, Value x) {
  Type type = x.getType();
  static const double f32[] = {-0.0607821650962859, 0.10593811759971431, -0.14243533071006175, 0.19998471500091657,
                               -0.33333315188311528};
  static const double f64[] = {-0.017905057907797567, 0.038062158051712259, -0.050391912038619344, 0.058478594629932577,
                               -0.066630992327135584, 0.076920597202923854, -0.090908977254350895, 0.11111110782162367,
                               -0.14285714280166732,  0.19999999999953249,  -0.33333333333333196};
  Value t = a.abs(x), zero = a.constant(type, 0.0), one = a.constant(type, 1.0);
  Value above = a.compare(CmpFPredicate::OGT, t, a.constant(type, 2.414213562373095));
  Value middle = a.compare(CmpFPredicate::OGT, t, a.constant(type, 0.4142135623730950));
  Value numerator = a.select(above, a.constant(type, -1.0), a.select(middle, a.sub(t, one), t));
  Value denominator = a.select(above, t, a.select(middle, a.add(t, one), one));
  Value q = a.div(numerator, denominator), square = a.mul(q, q);
  Value part = a.fma(a.mul(q, square), polynomial(a, square, f32, f64), q);
  HalfPi halfPi(a, type);
  Value half = a.constant(type, 0.5);
  auto offset = [&](Value c) { return a.select(above, c, a.select(middle, a.mul(c, half), zero)); };
  return a.copySign(a.add(offset(halfPi.high), a.add(part, offset(halfPi.low))), x);
}

}  // namespace sheaf::codegen
