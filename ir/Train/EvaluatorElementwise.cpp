#include <cmath>
#include <limits>
#include <numbers>

#include "ir/Train/EvaluatorDetail.h"
#include "ir/Train/StopGradient.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace sheaf::train;
using namespace sheaf::train::evaluator;

double evaluator::gelu(double x, bool approximate) {
  if (!approximate) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double evaluator::geluSlope(double x, bool approximate) {
  if (!approximate)
    return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  const double k = std::sqrt(2 / std::numbers::pi), tanh = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * k * (1 + 3 * 0.044715 * x * x);
}

int64_t evaluator::toInteger(double x, IntegerType type) {
  if (type.isInteger(1)) return x != 0;
  if (std::isnan(x)) return 0;
  int bits = int(type.getWidth()) - !type.isUnsigned();
  double limit = std::ldexp(1.0, bits);
  x = std::trunc(x);
  if (x >= limit) return int64_t(bits == 63 ? uint64_t(INT64_MAX) : (uint64_t(1) << bits) - 1);
  if (type.isUnsigned()) return x < 0 ? 0 : int64_t(x);
  if (x < -limit) return bits == 63 ? INT64_MIN : -(int64_t(1) << bits);
  return int64_t(x);
}

namespace {

// Wrapping arithmetic is defined on unsigned integers only.
int64_t wrap(uint64_t v) {
  return int64_t(v);
}

int64_t integerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1, square = uint64_t(base);
  for (; exponent; exponent >>= 1, square *= square)
    if (exponent & 1) result *= square;
  return wrap(result);
}

int64_t integerDivide(int64_t x, int64_t y) {
  return y == 0 ? 0 : y == -1 ? wrap(-uint64_t(x)) : x / y;
}
int64_t integerRemainder(int64_t x, int64_t y) {
  return y == 0 || y == -1 ? 0 : x % y;
}

// The remainder with the sign of the divisor.
double floorMod(double x, double y) {
  double r = std::fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
int64_t floorMod(int64_t x, int64_t y) {
  int64_t r = integerRemainder(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

// NaN if either operand is. Of zeros that differ in sign, the second.
double maximum(double x, double y) {
  return x > y || std::isnan(x) ? x : y;
}
double minimum(double x, double y) {
  return x < y || std::isnan(x) ? x : y;
}

// Evaluates `count` elements of each operand. Floats lie in `f`, rounded afterwards; integers and booleans in `i`.
class Elementwise {
 public:
  Elementwise(Operation* op, ArrayRef<Column> in, const MutableColumn& out, int64_t count, bool round)
      : op(op), in(in), out(out), count(count), round(round) {}

  Outcome run();

 private:
  Operation* op;
  ArrayRef<Column> in;
  MutableColumn out;
  int64_t count;
  bool round;

  // Of floats only.
  template <typename F>
  LogicalResult floats(F f) {
    for (int64_t k = 0; k < count; ++k) out.f[k] = f(in[0].f[k]);
    return success();
  }

  template <typename F, typename I>
  LogicalResult unary(F f, I i) {
    if (in[0].isFloat()) return floats(f);
    for (int64_t k = 0; k < count; ++k) out.i[k] = i(in[0].i[k]);
    return success();
  }

  template <typename F, typename I>
  LogicalResult binary(F f, I i) {
    if (in[0].isFloat())
      for (int64_t k = 0; k < count; ++k) out.f[k] = f(in[0].f[k], in[1].f[k]);
    else
      for (int64_t k = 0; k < count; ++k) out.i[k] = i(in[0].i[k], in[1].i[k]);
    return success();
  }

  // Of integers and booleans only.
  template <typename I>
  LogicalResult bitwise(I i) {
    for (int64_t k = 0; k < count; ++k) out.i[k] = i(in[0].i[k], in[1].i[k]);
    return success();
  }

  template <typename F>
  LogicalResult compareWith(F f) {
    if (in[0].isFloat())
      for (int64_t k = 0; k < count; ++k) out.i[k] = f(in[0].f[k], in[1].f[k]);
    else
      for (int64_t k = 0; k < count; ++k) out.i[k] = f(in[0].i[k], in[1].i[k]);
    return success();
  }

  // One loop for each predicate: masks are large.
  LogicalResult compare(ComparePredicate predicate) {
    switch (predicate) {
      case ComparePredicate::eq:
        return compareWith([](auto x, auto y) { return x == y; });
      case ComparePredicate::ne:
        return compareWith([](auto x, auto y) { return x != y; });
      case ComparePredicate::lt:
        return compareWith([](auto x, auto y) { return x < y; });
      case ComparePredicate::le:
        return compareWith([](auto x, auto y) { return x <= y; });
      case ComparePredicate::gt:
        return compareWith([](auto x, auto y) { return x > y; });
      case ComparePredicate::ge:
        return compareWith([](auto x, auto y) { return x >= y; });
    }
    llvm_unreachable("predicate");
  }

  template <typename From, typename To, typename F>
  LogicalResult castWith(const From* from, To* to, F f) {
    for (int64_t k = 0; k < count; ++k) to[k] = To(f(from[k]));
    return success();
  }

  LogicalResult cast() {
    auto same = [](auto x) { return x; };
    auto integer = dyn_cast<IntegerType>(out.element);
    if (!integer) {
      if (in[0].isFloat()) return castWith(in[0].f, out.f, same);
      // Not through f64, which would round twice.
      bool single = round && !out.element.isF64();
      return single ? castWith(in[0].i, out.f, [](int64_t x) { return float(x); }) : castWith(in[0].i, out.f, same);
    }
    if (in[0].isFloat()) return castWith(in[0].f, out.i, [&](double x) { return toInteger(x, integer); });
    return integer.isInteger(1) ? castWith(in[0].i, out.i, [](int64_t x) { return x != 0; })
                                : castWith(in[0].i, out.i, same);
  }

  template <typename T>
  LogicalResult selectFrom(const T* onTrue, const T* onFalse, T* to) {
    for (int64_t k = 0; k < count; ++k) to[k] = in[0].i[k] ? onTrue[k] : onFalse[k];
    return success();
  }

  LogicalResult select() {
    return out.isFloat() ? selectFrom(in[1].f, in[2].f, out.f) : selectFrom(in[1].i, in[2].i, out.i);
  }

  // Rounded once: for f32 through f32's own fma, since rounding the f64 result again may differ. (One other operation
  // of f32 operands in f64, rounded again, is the same as in f32.)
  LogicalResult fma() {
    bool single = round && out.element.isF32();
    for (int64_t k = 0; k < count; ++k) {
      double a = in[0].f[k], b = in[1].f[k], c = in[2].f[k];
      out.f[k] = single ? std::fma(float(a), float(b), float(c)) : std::fma(a, b, c);
    }
    return success();
  }
};

Outcome Elementwise::run() {
  using D = double;
  using I = int64_t;
  return llvm::TypeSwitch<Operation*, Outcome>(op)
      .Case<NegOp>([&](auto) { return unary([](D x) { return -x; }, [](I x) { return wrap(-uint64_t(x)); }); })
      .Case<AbsOp>([&](auto) {
        return unary([](D x) { return std::fabs(x); }, [](I x) { return x < 0 ? wrap(-uint64_t(x)) : x; });
      })
      .Case<SignOp>([&](auto) {
        return unary([](D x) { return x > 0 ? 1 : x < 0 ? -1 : x; }, [](I x) { return I((x > 0) - (x < 0)); });
      })
      .Case<ReluOp>([&](auto) { return unary([](D x) { return x <= 0 ? 0 : x; }, [](I x) { return x < 0 ? 0 : x; }); })
      .Case<FloorOp>([&](auto) { return floats([](D x) { return std::floor(x); }); })
      .Case<CeilOp>([&](auto) { return floats([](D x) { return std::ceil(x); }); })
      .Case<RoundOp>([&](auto) { return floats([](D x) { return std::nearbyint(x); }); })
      .Case<StopGradientOp>([&](auto) { return floats([](D x) { return x; }); })
      .Case<ExpOp>([&](auto) { return floats([](D x) { return std::exp(x); }); })
      .Case<LogOp>([&](auto) { return floats([](D x) { return std::log(x); }); })
      .Case<SqrtOp>([&](auto) { return floats([](D x) { return std::sqrt(x); }); })
      .Case<RsqrtOp>([&](auto) { return floats([](D x) { return 1 / std::sqrt(x); }); })
      .Case<ReciprocalOp>([&](auto) { return floats([](D x) { return 1 / x; }); })
      .Case<TanhOp>([&](auto) { return floats([](D x) { return std::tanh(x); }); })
      .Case<SigmoidOp>([&](auto) { return floats([](D x) { return 1 / (1 + std::exp(-x)); }); })
      .Case<SoftplusOp>(
          [&](auto) { return floats([](D x) { return (x > 0 ? x : 0) + std::log1p(std::exp(-std::fabs(x))); }); })
      .Case<ErfOp>([&](auto) { return floats([](D x) { return std::erf(x); }); })
      .Case<SinOp>([&](auto) { return floats([](D x) { return std::sin(x); }); })
      .Case<CosOp>([&](auto) { return floats([](D x) { return std::cos(x); }); })
      .Case<Expm1Op>([&](auto) { return floats([](D x) { return std::expm1(x); }); })
      .Case<Log1pOp>([&](auto) { return floats([](D x) { return std::log1p(x); }); })
      .Case<SinhOp>([&](auto) { return floats([](D x) { return std::sinh(x); }); })
      .Case<CoshOp>([&](auto) { return floats([](D x) { return std::cosh(x); }); })
      .Case<AsinhOp>([&](auto) { return floats([](D x) { return std::asinh(x); }); })
      .Case<AcoshOp>([&](auto) { return floats([](D x) { return std::acosh(x); }); })
      .Case<AtanhOp>([&](auto) { return floats([](D x) { return std::atanh(x); }); })
      .Case<TanOp>([&](auto) { return floats([](D x) { return std::tan(x); }); })
      .Case<AsinOp>([&](auto) { return floats([](D x) { return std::asin(x); }); })
      .Case<AcosOp>([&](auto) { return floats([](D x) { return std::acos(x); }); })
      .Case<AtanOp>([&](auto) { return floats([](D x) { return std::atan(x); }); })
      .Case<GeluOp>([&](GeluOp gate) { return floats([&](D x) { return gelu(x, gate.getApproximate()); }); })
      .Case<GeluGradOp>([&](GeluGradOp gate) {
        return binary([&](D x, D g) { return g * geluSlope(x, gate.getApproximate()); }, [](I x, I) { return x; });
      })
      .Case<NotOp>([&](auto) {
        bool logical = out.element.isInteger(1);
        return unary([](D x) { return x; }, [&](I x) { return logical ? !x : ~x; });
      })
      .Case<IsNanOp>([&](auto) {
        for (int64_t k = 0; k < count; ++k) out.i[k] = std::isnan(in[0].f[k]);
        return success();
      })
      .Case<CastOp>([&](auto) { return cast(); })
      .Case<AddOp>([&](auto) {
        return binary([](D x, D y) { return x + y; }, [](I x, I y) { return wrap(uint64_t(x) + uint64_t(y)); });
      })
      .Case<SubOp>([&](auto) {
        return binary([](D x, D y) { return x - y; }, [](I x, I y) { return wrap(uint64_t(x) - uint64_t(y)); });
      })
      .Case<MulOp>([&](auto) {
        return binary([](D x, D y) { return x * y; }, [](I x, I y) { return wrap(uint64_t(x) * uint64_t(y)); });
      })
      .Case<DivOp>([&](auto) { return binary([](D x, D y) { return x / y; }, integerDivide); })
      .Case<ModOp>([&](ModOp mod) {
        if (mod.getFmod()) return binary([](D x, D y) { return std::fmod(x, y); }, integerRemainder);
        return binary([](D x, D y) { return floorMod(x, y); }, [](I x, I y) { return floorMod(x, y); });
      })
      .Case<PowOp>([&](auto) { return binary([](D x, D y) { return std::pow(x, y); }, integerPower); })
      .Case<MinOp>([&](auto) { return binary(minimum, [](I x, I y) { return std::min(x, y); }); })
      .Case<MaxOp>([&](auto) { return binary(maximum, [](I x, I y) { return std::max(x, y); }); })
      .Case<AtanRatioOp>(
          [&](auto) { return binary([](D x, D y) { return std::atan(x / y); }, [](I x, I) { return x; }); })
      .Case<AndOp>([&](auto) { return bitwise([](I x, I y) { return x & y; }); })
      .Case<OrOp>([&](auto) { return bitwise([](I x, I y) { return x | y; }); })
      .Case<XorOp>([&](auto) { return bitwise([](I x, I y) { return x ^ y; }); })
      .Case<ShiftLeftOp>([&](auto) {
        I width = out.element.getIntOrFloatBitWidth();
        return bitwise([&](I x, I y) { return y < 0 || y >= width ? 0 : wrap(uint64_t(x) << y); });
      })
      .Case<ShiftRightOp>([&](auto) {
        I width = out.element.getIntOrFloatBitWidth();
        return bitwise([&](I x, I y) { return x >> (y < 0 || y >= width ? 63 : y); });
      })
      .Case<CompareOp>([&](CompareOp c) { return compare(c.getPredicate()); })
      .Case<SelectOp>([&](auto) { return select(); })
      .Case<FmaOp>([&](auto) { return fma(); })
      .Case<GuardOp>([&](auto) {
        for (int64_t k = 0; k < count; ++k) out.f[k] = in[0].f[k] == 0 && !std::isnan(in[1].f[k]) ? 0 : in[2].f[k];
        return success();
      })
      .Default([](auto) { return std::nullopt; });
}

}  // namespace

Outcome evaluator::evaluateElementwise(Operation* op, Operands in, Results out, const EvaluatorOptions& options) {
  if (in.empty() || out.empty()) return std::nullopt;
  SmallVector<Column> columns;
  for (const Tensor* t : in) columns.push_back({t->type.getElementType(), t->f.data(), t->i.data()});
  MutableColumn result{out[0].type.getElementType(), out[0].f.data(), out[0].i.data()};
  return Elementwise(op, columns, result, out[0].size(), options.round).run();
}

std::optional<Element> sheaf::train::evaluateElement(Operation* op, ArrayRef<Element> operands) {
  SmallVector<Column> columns;
  for (auto [value, element] : llvm::zip(op->getOperands(), operands))
    columns.push_back({getElementTypeOrSelf(value.getType()), &element.f, &element.i});
  Element result;
  MutableColumn out{getElementTypeOrSelf(op->getResult(0).getType()), &result.f, &result.i};
  Outcome outcome = Elementwise(op, columns, out, 1, /*round=*/true).run();
  if (!outcome || failed(*outcome)) return std::nullopt;
  normalize(out, 1, /*round=*/true);
  return result;
}
