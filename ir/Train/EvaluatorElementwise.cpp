#include <cmath>
#include <limits>
#include <numbers>

#include "ir/Train/Compare.h"
#include "ir/Train/EvaluatorDetail.h"
#include "llvm/ADT/TypeSwitch.h"

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

// The remainder with the sign of the divisor.
double floorMod(double x, double y) {
  double r = std::fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
int64_t floorMod(int64_t x, int64_t y) {
  int64_t r = y == -1 ? 0 : x % y;
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

// Either operand being NaN, the result is.
double maximum(double x, double y) {
  return x > y || std::isnan(x) ? x : y;
}
double minimum(double x, double y) {
  return x < y || std::isnan(x) ? x : y;
}

// Truncates toward zero; what does not fit becomes the nearest integer that does, and NaN 0.
int64_t toInteger(double x, IntegerType type) {
  if (std::isnan(x)) return 0;
  if (type.isInteger(1)) return x != 0;
  int bits = int(type.getWidth()) - !type.isUnsigned();
  double limit = std::ldexp(1.0, bits);
  x = std::trunc(x);
  if (x >= limit) return int64_t(bits == 63 ? uint64_t(INT64_MAX) : (uint64_t(1) << bits) - 1);
  if (type.isUnsigned()) return x < 0 ? 0 : int64_t(x);
  if (x < -limit) return bits == 63 ? INT64_MIN : -(int64_t(1) << bits);
  return int64_t(x);
}

class Elementwise {
 public:
  Elementwise(Operation* op, Operands in, Results out, const EvaluatorOptions& options)
      : op(op), in(in), out(out), options(options) {}

  Outcome run();

 private:
  Operation* op;
  Operands in;
  Results out;
  const EvaluatorOptions& options;

  // Of floats only.
  template <typename F>
  LogicalResult floats(F f) {
    for (size_t k = 0; k < out[0].f.size(); ++k) out[0].f[k] = f(in[0]->f[k]);
    return success();
  }

  template <typename F, typename I>
  LogicalResult unary(F f, I i) {
    if (in[0]->isFloat()) return floats(f);
    for (size_t k = 0; k < out[0].i.size(); ++k) out[0].i[k] = i(in[0]->i[k]);
    return success();
  }

  template <typename F, typename I>
  LogicalResult binary(F f, I i) {
    if (in[0]->isFloat())
      for (size_t k = 0; k < out[0].f.size(); ++k) out[0].f[k] = f(in[0]->f[k], in[1]->f[k]);
    else
      for (size_t k = 0; k < out[0].i.size(); ++k) out[0].i[k] = i(in[0]->i[k], in[1]->i[k]);
    return success();
  }

  // A zero among integer divisors is an error, not a trap.
  LogicalResult checkDivisors() {
    if (!in[1]->isFloat() && llvm::is_contained(in[1]->i, 0)) return op->emitOpError("divides an integer by zero");
    return success();
  }

  LogicalResult compare(ComparePredicate predicate) {
    bool isFloat = in[0]->isFloat();
    for (size_t k = 0; k < out[0].i.size(); ++k)
      out[0].i[k] = isFloat ? holds(predicate, in[0]->f[k], in[1]->f[k]) : holds(predicate, in[0]->i[k], in[1]->i[k]);
    return success();
  }

  LogicalResult cast() {
    auto integer = dyn_cast<IntegerType>(out[0].type.getElementType());
    for (int64_t k = 0; k < out[0].size(); ++k) {
      if (integer)
        out[0].i[k] = in[0]->isFloat()       ? toInteger(in[0]->f[k], integer)
                      : integer.isInteger(1) ? in[0]->i[k] != 0
                                             : in[0]->i[k];
      else
        out[0].f[k] = in[0]->isFloat() ? in[0]->f[k] : double(in[0]->i[k]);
    }
    return success();
  }

  LogicalResult select() {
    for (int64_t k = 0; k < out[0].size(); ++k) {
      const Tensor& chosen = in[0]->i[k] ? *in[1] : *in[2];
      if (out[0].isFloat())
        out[0].f[k] = chosen.f[k];
      else
        out[0].i[k] = chosen.i[k];
    }
    return success();
  }

  // Rounded once: for f32 through f32's own fma, since rounding the f64 result again may differ. (One other operation
  // of f32 operands in f64, rounded again, is the same as in f32.)
  LogicalResult fma() {
    bool single = options.round && out[0].type.getElementType().isF32();
    for (size_t k = 0; k < out[0].f.size(); ++k) {
      double a = in[0]->f[k], b = in[1]->f[k], c = in[2]->f[k];
      out[0].f[k] = single ? std::fma(float(a), float(b), float(c)) : std::fma(a, b, c);
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
        return unary([](D x) { return std::isnan(x) ? x : D((x > 0) - (x < 0)); },
                     [](I x) { return I((x > 0) - (x < 0)); });
      })
      .Case<ReluOp>([&](auto) { return unary([](D x) { return x <= 0 ? 0 : x; }, [](I x) { return x < 0 ? 0 : x; }); })
      .Case<FloorOp>([&](auto) { return floats([](D x) { return std::floor(x); }); })
      .Case<CeilOp>([&](auto) { return floats([](D x) { return std::ceil(x); }); })
      .Case<RoundOp>([&](auto) { return floats([](D x) { return std::nearbyint(x); }); })
      .Case<ExpOp>([&](auto) { return floats([](D x) { return std::exp(x); }); })
      .Case<LogOp>([&](auto) { return floats([](D x) { return std::log(x); }); })
      .Case<SqrtOp>([&](auto) { return floats([](D x) { return std::sqrt(x); }); })
      .Case<RsqrtOp>([&](auto) { return floats([](D x) { return 1 / std::sqrt(x); }); })
      .Case<ReciprocalOp>([&](auto) { return floats([](D x) { return 1 / x; }); })
      .Case<TanhOp>([&](auto) { return floats([](D x) { return std::tanh(x); }); })
      .Case<SigmoidOp>([&](auto) { return floats([](D x) { return 1 / (1 + std::exp(-x)); }); })
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
        for (size_t k = 0; k < out[0].f.size(); ++k)
          out[0].f[k] = in[1]->f[k] * geluSlope(in[0]->f[k], gate.getApproximate());
        return success();
      })
      .Case<NotOp>([&](auto) {
        bool logical = out[0].type.getElementType().isInteger(1);
        return unary([](D x) { return x; }, [&](I x) { return logical ? !x : ~x; });
      })
      .Case<IsNanOp>([&](auto) {
        for (size_t k = 0; k < out[0].i.size(); ++k) out[0].i[k] = std::isnan(in[0]->f[k]);
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
      .Case<DivOp>([&](auto) {
        if (failed(checkDivisors())) return failure();
        return binary([](D x, D y) { return x / y; }, [](I x, I y) { return y == -1 ? wrap(-uint64_t(x)) : x / y; });
      })
      .Case<ModOp>([&](ModOp mod) {
        if (failed(checkDivisors())) return failure();
        if (mod.getFmod())
          return binary([](D x, D y) { return std::fmod(x, y); }, [](I x, I y) { return y == -1 ? 0 : x % y; });
        return binary([](D x, D y) { return floorMod(x, y); }, [](I x, I y) { return floorMod(x, y); });
      })
      .Case<PowOp>([&](auto) { return binary([](D x, D y) { return std::pow(x, y); }, integerPower); })
      .Case<MinOp>([&](auto) { return binary(minimum, [](I x, I y) { return std::min(x, y); }); })
      .Case<MaxOp>([&](auto) { return binary(maximum, [](I x, I y) { return std::max(x, y); }); })
      .Case<AndOp>([&](auto) { return binary([](D x, D) { return x; }, [](I x, I y) { return x & y; }); })
      .Case<OrOp>([&](auto) { return binary([](D x, D) { return x; }, [](I x, I y) { return x | y; }); })
      .Case<XorOp>([&](auto) { return binary([](D x, D) { return x; }, [](I x, I y) { return x ^ y; }); })
      .Case<ShiftLeftOp>([&](auto) {
        I width = out[0].type.getElementTypeBitWidth();
        return binary([](D x, D) { return x; },
                      [&](I x, I y) { return y < 0 || y >= width ? 0 : wrap(uint64_t(x) << y); });
      })
      .Case<ShiftRightOp>([&](auto) {
        I width = out[0].type.getElementTypeBitWidth();
        return binary([](D x, D) { return x; }, [&](I x, I y) { return x >> (y < 0 || y >= width ? 63 : y); });
      })
      .Case<CompareOp>([&](CompareOp c) { return compare(c.getPredicate()); })
      .Case<SelectOp>([&](auto) { return select(); })
      .Case<FmaOp>([&](auto) { return fma(); })
      .Default([](auto) { return std::nullopt; });
}

}  // namespace

Outcome evaluator::evaluateElementwise(Operation* op, Operands in, Results out, const EvaluatorOptions& options) {
  return Elementwise(op, in, out, options).run();
}
