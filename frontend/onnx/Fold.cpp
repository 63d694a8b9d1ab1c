#include <cmath>

#include "frontend/onnx/Fold.h"
#include "frontend/onnx/FoldDetail.h"
#include "ir/Train/Compare.h"

using namespace mlir;

namespace sheaf::frontend {
namespace fold {
namespace {

Result make(Type type, const Constant& like, Storage data) {
  return finish(type, like.shape, like.stored, std::move(data));
}

template <class Out, class In, class F>
Result map(const Constant& x, Type type, F f) {
  if (!foldable(x.stored, type)) return {};
  const auto& in = values<In>(x);
  std::vector<Out> out(in.size());
  for (size_t i = 0; i < in.size(); ++i) out[i] = f(in[i]);
  return make(type, x, std::move(out));
}

template <class Out, class In, class F>
Result map2(const Constant& x, const Constant& y, Type type, F f) {
  Shape stored(x.shape.size());
  for (size_t d = 0; d < stored.size(); ++d) stored[d] = std::max(x.stored[d], y.stored[d]);
  auto count = foldable(stored, type);
  if (!count) return {};
  const In* a = values<In>(x).data();
  const In* b = values<In>(y).data();
  std::vector<Out> out(*count);
  walk<2>(stored, {strides(x), strides(y)}, [&](int64_t at, auto from, auto step, int64_t length) {
    for (int64_t i = 0; i < length; ++i) out[at + i] = f(a[from[0] + i * step[0]], b[from[1] + i * step[1]]);
  });
  return finish(type, x.shape, stored, std::move(out));
}

double evaluate(Unary op, double x) {
  switch (op) {
    case Unary::Neg:
      return -x;
    case Unary::Abs:
      return std::fabs(x);
    case Unary::Sign:
      return x > 0 ? 1 : x < 0 ? -1 : x;
    case Unary::Exp:
      return std::exp(x);
    case Unary::Log:
      return std::log(x);
    case Unary::Sqrt:
      return std::sqrt(x);
    case Unary::Rsqrt:
      return 1 / std::sqrt(x);
    case Unary::Reciprocal:
      return 1 / x;
    case Unary::Tanh:
      return std::tanh(x);
    case Unary::Sigmoid:
      return 1 / (1 + std::exp(-x));
    case Unary::Erf:
      return std::erf(x);
    case Unary::Relu:
      return x < 0 ? 0 : x;
    case Unary::Sin:
      return std::sin(x);
    case Unary::Cos:
      return std::cos(x);
    case Unary::Floor:
      return std::floor(x);
    case Unary::Ceil:
      return std::ceil(x);
    case Unary::Round:
      return std::nearbyint(x);
  }
  return x;
}

double evaluate(Binary op, double x, double y) {
  switch (op) {
    case Binary::Add:
      return x + y;
    case Binary::Sub:
      return x - y;
    case Binary::Mul:
      return x * y;
    case Binary::Div:
      return x / y;
    case Binary::Pow:
      return std::pow(x, y);
    case Binary::Min:
      return std::isnan(x) || x < y ? x : y;
    case Binary::Max:
      return std::isnan(x) || x > y ? x : y;
    case Binary::Fmod:
      return std::fmod(x, y);
    case Binary::Mod: {
      double r = std::fmod(x, y);
      return r != 0 && (r < 0) != (y < 0) ? r + y : r;
    }
    default:
      return x;
  }
}

// Wraps on overflow, as two's complement hardware does; the caller excludes a zero divisor.
int64_t evaluate(Binary op, int64_t x, int64_t y) {
  uint64_t a = uint64_t(x), b = uint64_t(y);
  switch (op) {
    case Binary::Add:
      return int64_t(a + b);
    case Binary::Sub:
      return int64_t(a - b);
    case Binary::Mul:
      return int64_t(a * b);
    case Binary::Div:
      return y == -1 ? int64_t(-a) : x / y;
    case Binary::Min:
      return std::min(x, y);
    case Binary::Max:
      return std::max(x, y);
    case Binary::Fmod:
      return y == -1 ? 0 : x % y;
    case Binary::Mod: {
      int64_t r = y == -1 ? 0 : x % y;
      return r != 0 && (r < 0) != (y < 0) ? r + y : r;
    }
    case Binary::Pow: {
      if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
      uint64_t power = 1;
      for (; b; b >>= 1, a *= a)
        if (b & 1) power *= a;
      return int64_t(power);
    }
    default:
      return x;
  }
}

}  // namespace

Result unary(Unary op, const Constant& x) {
  if (isBool(x.type)) return {};
  return dispatch(x.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    if constexpr (std::is_floating_point_v<T>)
      return map<T, T>(x, x.type, [&](T v) { return toType(evaluate(op, double(v)), x.type, T()); });
    else if constexpr (std::is_same_v<T, int64_t>) {
      auto f = [&](int64_t v) -> int64_t {
        switch (op) {
          case Unary::Neg:
            return toType(int64_t(-uint64_t(v)), x.type);
          case Unary::Abs:
            return v < 0 ? toType(int64_t(-uint64_t(v)), x.type) : v;
          case Unary::Sign:
            return v > 0 ? 1 : v < 0 ? -1 : 0;
          case Unary::Relu:
            return std::max<int64_t>(v, 0);
          default:
            return v;
        }
      };
      bool exact = op == Unary::Neg || op == Unary::Abs || op == Unary::Sign || op == Unary::Relu ||
                   op == Unary::Floor || op == Unary::Ceil || op == Unary::Round;
      return exact ? map<T, T>(x, x.type, f) : Result();
    } else
      return {};
  });
}

Result binary(Binary op, const Constant& x, const Constant& y) {
  return dispatch(x.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    if constexpr (std::is_floating_point_v<T>) {
      if (op >= Binary::And) return {};
      return map2<T, T>(x, y, x.type,
                        [&](T a, T b) { return toType(evaluate(op, double(a), double(b)), x.type, T()); });
    } else if constexpr (std::is_same_v<T, int64_t>) {
      if (op >= Binary::And) return {};
      bool divides = op == Binary::Div || op == Binary::Mod || op == Binary::Fmod;
      if (divides && llvm::is_contained(values<T>(y), 0)) return {};
      return map2<T, T>(x, y, x.type, [&](T a, T b) { return toType(evaluate(op, a, b), x.type); });
    } else {
      switch (op) {
        case Binary::And:
          return map2<T, T>(x, y, x.type, [](T a, T b) -> T { return a & b; });
        case Binary::Or:
          return map2<T, T>(x, y, x.type, [](T a, T b) -> T { return a | b; });
        case Binary::Xor:
          return map2<T, T>(x, y, x.type, [](T a, T b) -> T { return a ^ b; });
        default:
          return {};
      }
    }
  });
}

Result compare(train::ComparePredicate predicate, const Constant& x, const Constant& y) {
  Type boolean = IntegerType::get(x.type.getContext(), 1);
  Shape stored(x.shape.size());
  for (size_t d = 0; d < stored.size(); ++d) stored[d] = std::max(x.stored[d], y.stored[d]);
  bool grows = x.stored != stored && y.stored != stored;
  if (grows && elementCount(stored).value_or(INT64_MAX) > kMaxMask) return {};
  return dispatch(x.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    // One loop per predicate: masks are large.
    auto with = [&](auto f) { return map2<uint8_t, T>(x, y, boolean, f); };
    if (predicate == train::ComparePredicate::le) return with([](T a, T b) -> uint8_t { return a <= b; });
    if (predicate == train::ComparePredicate::eq) return with([](T a, T b) -> uint8_t { return a == b; });
    return with([&](T a, T b) -> uint8_t { return train::holds(predicate, a, b); });
  });
}

Result select(const Constant& condition, const Constant& x, const Constant& y) {
  Shape stored(x.shape.size());
  for (size_t d = 0; d < stored.size(); ++d) stored[d] = std::max({condition.stored[d], x.stored[d], y.stored[d]});
  auto count = foldable(stored, x.type);
  if (!count) return {};
  return dispatch(x.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    std::vector<T> out(*count);
    const auto& c = values<uint8_t>(condition);
    const auto &a = values<T>(x), &b = values<T>(y);
    walk<3>(stored, {strides(condition), strides(x), strides(y)},
            [&](int64_t at, auto from, auto step, int64_t length) {
              for (int64_t i = 0; i < length; ++i)
                out[at + i] = c[from[0] + i * step[0]] ? a[from[1] + i * step[1]] : b[from[2] + i * step[2]];
            });
    return finish(x.type, x.shape, stored, std::move(out));
  });
}

Result logicalNot(const Constant& x) {
  return map<uint8_t, uint8_t>(x, x.type, [](uint8_t v) -> uint8_t { return !v; });
}

Result isNan(const Constant& x) {
  Type boolean = IntegerType::get(x.type.getContext(), 1);
  if (x.type.isF64()) return map<uint8_t, double>(x, boolean, [](double v) -> uint8_t { return std::isnan(v); });
  return map<uint8_t, float>(x, boolean, [](float v) -> uint8_t { return std::isnan(v); });
}

Result cast(const Constant& x, Type type) {
  if (x.type == type) return x;
  return dispatch(x.type, [&](auto in) -> Result {
    return dispatch(type, [&](auto out) -> Result {
      using In = decltype(in);
      using Out = decltype(out);
      return map<Out, In>(x, type, [&](In v) -> Out {
        if constexpr (std::is_same_v<Out, uint8_t>)
          return v != 0;
        else if constexpr (std::is_same_v<Out, int64_t>)
          if constexpr (std::is_floating_point_v<In>)
            return fromDouble(v, type);
          else
            return toType(int64_t(v), type);
        else
          return toType(double(v), type, Out());
      });
    });
  });
}

Result reduce(train::ReduceKind kind, const Constant& x, ArrayRef<int64_t> axes) {
  if (isBool(x.type)) return {};
  SmallVector<bool> mask(x.shape.size());
  for (int64_t axis : axes) mask[axis] = true;
  Result whole = expand(x, mask);
  if (!whole) return {};
  Shape shape = x.shape, stored = whole->stored;
  int64_t reduced = 1;
  for (int64_t axis : axes) reduced *= shape[axis], shape[axis] = stored[axis] = 1;
  Binary op = kind == train::ReduceKind::max    ? Binary::Max
              : kind == train::ReduceKind::min  ? Binary::Min
              : kind == train::ReduceKind::prod ? Binary::Mul
                                                : Binary::Add;
  bool unit = op == Binary::Max || op == Binary::Min;
  if (unit && reduced == 0) return {};
  auto count = elementCount(stored);
  return dispatch(x.type, [&](auto sample) -> Result {
    using T = decltype(sample);
    using Sum = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    if constexpr (std::is_same_v<T, uint8_t>)
      return {};
    else {
      std::vector<Sum> sums(*count, op == Binary::Mul ? 1 : 0);
      std::vector<bool> seen(unit ? *count : 0);
      Constant target{x.type, shape, stored, nullptr};
      const auto& in = values<T>(*whole);
      walk<1>(whole->stored, {strides(target)}, [&](int64_t at, auto to, auto step, int64_t length) {
        for (int64_t i = 0; i < length; ++i) {
          int64_t o = to[0] + i * step[0];
          bool first = unit && !seen[o];
          sums[o] = first ? Sum(in[at + i]) : evaluate(op, sums[o], Sum(in[at + i]));
          if (first) seen[o] = true;
        }
      });
      std::vector<T> out(*count);
      for (int64_t i = 0; i < *count; ++i) {
        if (kind == train::ReduceKind::mean && reduced) sums[i] /= reduced;
        if constexpr (std::is_floating_point_v<T>)
          out[i] = toType(sums[i], x.type, T());
        else
          out[i] = toType(sums[i], x.type);
      }
      return finish(x.type, shape, stored, std::move(out));
    }
  });
}

}  // namespace fold
}  // namespace sheaf::frontend
