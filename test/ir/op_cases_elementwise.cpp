// Cases of elementwise ops.
#include <cmath>
#include <limits>
#include <random>

#include "test/ir/OpCase.h"

namespace sheaf::test {

Values numbers(size_t count, unsigned seed, double low, double high, double margin) {
  std::mt19937_64 generator(seed);
  Values values;
  while (values.size() < count) {
    double x = low + (high - low) * double(generator() >> 11) / 9007199254740992.0;
    double kink = std::round(2 * x) / 2;
    if (std::fabs(x - kink) >= margin) values.push_back(x);
  }
  return values;
}

size_t countOf(const std::string& shape) {
  size_t count = 1;
  for (size_t at = 0; at < shape.size();
       at = shape.find('x', at) == std::string::npos ? shape.size() : shape.find('x', at) + 1)
    count *= std::stoul(shape.substr(at));
  return count;
}

Input real(const std::string& shape, unsigned seed, double low, double high, double margin) {
  return {shape, "f64", numbers(countOf(shape), seed, low, high, margin), true};
}

Input given(const std::string& shape, Values values) {
  return {shape, "f64", std::move(values), true};
}

Input data(const std::string& shape, const std::string& element, Values values) {
  return {shape, element, std::move(values), false};
}

namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();

OpCase unary(const std::string& op, const std::string& variant, Input x, double (*f)(double),
             const std::string& attributes = "") {
  std::string type = x.type();
  return {op,
          variant,
          {x},
          "%r = train." + op + " %a0" + attributes + " : " + type,
          type,
          [f](const std::vector<Values>& in) {
            Values out;
            for (double v : in[0]) out.push_back(f(v));
            return out;
          }};
}

// The gradient of these is zero, so they are checked on top of the identity.
OpCase step(const std::string& op, double (*f)(double)) {
  OpCase c = unary(op, "", real("7", 21, -3, 3, 0.05), f);
  c.body = "%s = train." + op + " %a0 : tensor<7xf64>\n%r = train.add %s, %a0 : tensor<7xf64>";
  c.oracle = [f](const std::vector<Values>& in) {
    Values out;
    for (double v : in[0]) out.push_back(f(v) + v);
    return out;
  };
  return c;
}

OpCase binary(const std::string& op, const std::string& variant, Input x, Input y, double (*f)(double, double),
              const std::string& attributes = "") {
  std::string type = x.type();
  return {op,
          variant,
          {x, y},
          "%r = train." + op + " %a0, %a1" + attributes + " : " + type,
          type,
          [f](const std::vector<Values>& in) {
            Values out;
            for (size_t k = 0; k < in[0].size(); ++k) out.push_back(f(in[0][k], in[1][k]));
            return out;
          }};
}

OpCase exactly(OpCase c, std::vector<Values> gradients) {
  c.gradients = std::move(gradients);
  return c;
}

OpCase compare(const std::string& predicate, bool (*f)(double, double)) {
  return {"compare",
          predicate,
          {data("4", "f64", {1, 2, 2, kNan}), data("4", "f64", {2, 2, 1, 1})},
          "%r = train.compare " + predicate + " %a0, %a1 : tensor<4xf64>",
          "tensor<4xi1>",
          [f](const std::vector<Values>& in) {
            Values out;
            for (size_t k = 0; k < 4; ++k) out.push_back(f(in[0][k], in[1][k]));
            return out;
          }};
}

OpCase logical(const std::string& op, Values expected) {
  return {op,
          "",
          {data("4", "i1", {0, 0, 1, 1}), data("4", "i1", {0, 1, 0, 1})},
          "%r = train." + op + " %a0, %a1 : tensor<4xi1>",
          "tensor<4xi1>",
          [expected](const std::vector<Values>&) { return expected; }};
}

// The integer part of an op, on 32-bit numbers.
OpCase integers(const std::string& op, const std::string& variant, std::vector<Values> operands, Values expected,
                const std::string& attributes = "") {
  OpCase c{op,
           variant.empty() ? "integers" : variant,
           {},
           "%r = train." + op,
           "tensor<" + std::to_string(expected.size()) + "xi32>",
           [expected](const std::vector<Values>&) { return expected; }};
  for (size_t k = 0; k < operands.size(); ++k) {
    c.body += (k ? ", %a" : " %a") + std::to_string(k);
    c.inputs.push_back(data(std::to_string(expected.size()), "i32", operands[k]));
  }
  c.body += attributes + " : " + c.result;
  return c;
}

OpCase cast(const std::string& variant, const std::string& from, const std::string& to, Values in, Values out) {
  std::string n = std::to_string(in.size());
  return {"cast",
          variant,
          {data(n, from, in)},
          "%r = train.cast %a0 : tensor<" + n + "x" + from + "> -> tensor<" + n + "x" + to + ">",
          "tensor<" + n + "x" + to + ">",
          [out](const std::vector<Values>&) { return out; }};
}

double tanhGelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
// The normal distribution by its complement, unlike the evaluator's.
double erfGelu(double x) {
  return x * std::erfc(-x * 0.7071067811865476) / 2;
}
// The slopes by the definitions of tanh and of the normal distribution.
double tanhGeluSlope(double x) {
  const double u = 0.7978845608028654 * (x + 0.044715 * x * x * x), s = 1 / (1 + std::exp(-2 * u));
  return s + 2 * x * s * (1 - s) * 0.7978845608028654 * (1 + 0.134145 * x * x);
}
double erfGeluSlope(double x) {
  return std::erfc(-x * 0.7071067811865476) / 2 + x * 0.3989422804014327 * std::pow(2.718281828459045235, -x * x / 2);
}

OpCase geluGrad(const std::string& variant, double (*slope)(double), const std::string& attributes) {
  const Values x = numbers(15, 16, -4, 4), g = numbers(15, 17);
  return {"gelu_grad",
          variant,
          {data("3x5", "f64", x), data("3x5", "f64", g)},
          "%r = train.gelu_grad %a0, %a1" + attributes + " : tensor<3x5xf64>",
          "tensor<3x5xf64>",
          [=](const std::vector<Values>&) {
            Values out;
            for (size_t k = 0; k < x.size(); ++k) out.push_back(g[k] * slope(x[k]));
            return out;
          }};
}

double sign(double x) {
  return x < 0 ? -1 : x > 0 ? 1 : 0;
}
double halfToEven(double x) {
  double low = std::floor(x), distance = x - low;
  if (distance != 0.5) return distance < 0.5 ? low : low + 1;
  return std::fmod(low, 2) == 0 ? low : low + 1;
}

std::vector<OpCase> unaryCases() {
  return {
      unary("neg", "", real("2x3", 1), [](double x) { return 0 - x; }),
      unary("abs", "", real("2x3", 2, -2, 2, 0.05), [](double x) { return x < 0 ? -x : x; }),
      exactly(unary("abs", "at_zero", given("3", {-1, 0, 2}), [](double x) { return x < 0 ? -x : x; }), {{-1, 0, 1}}),
      unary("exp", "", real("2x3", 3), [](double x) { return std::pow(2.718281828459045235, x); }),
      unary("log", "", real("2x3", 4, 0.3, 3), [](double x) { return std::log2(x) * 0.6931471805599453; }),
      unary("sqrt", "", real("5", 5, 0.3, 3), [](double x) { return std::pow(x, 0.5); }),
      unary("rsqrt", "", real("5", 6, 0.3, 3), [](double x) { return std::pow(x, -0.5); }),
      unary("reciprocal", "", real("5", 7, 0.4, 3), [](double x) { return std::pow(x, -1); }),
      unary("tanh", "", real("5", 8), [](double x) { return 1 - 2 / (1 + std::exp(2 * x)); }),
      unary("sigmoid", "", real("5", 9), [](double x) { return 0.5 + 0.5 * std::tanh(x / 2); }),
      unary("softplus", "", real("5", 72), [](double x) { return std::log(1 + std::exp(x)); }),
      exactly(unary("softplus", "at_zero", given("2", {0, -0.0}), [](double) { return std::log(2); }), {{0.5, 0.5}}),
      unary("softplus", "far", data("3", "f64", {-40, 800, -800}),
            [](double x) { return x > 0      ? x
                                  : x < -700 ? 0
                                             : std::exp(x); }),
      unary("erf", "", real("5", 10), [](double x) { return 1 - std::erfc(x); }),
      unary("sin", "", real("5", 11), [](double x) { return std::cos(x - 1.5707963267948966); }),
      unary("cos", "", real("5", 12), [](double x) { return std::sin(x + 1.5707963267948966); }),
      unary("expm1", "", real("5", 61), [](double x) { return std::exp(x) - 1; }),
      unary("log1p", "", real("5", 62, -0.7, 3), [](double x) { return std::log(1 + x); }),
      unary("sinh", "", real("5", 63), [](double x) { return (std::exp(x) - std::exp(-x)) / 2; }),
      unary("cosh", "", real("5", 64), [](double x) { return (std::exp(x) + std::exp(-x)) / 2; }),
      unary("asinh", "", real("5", 65), [](double x) { return std::log(x + std::sqrt(x * x + 1)); }),
      unary("acosh", "", real("5", 66, 1.3, 4), [](double x) { return std::log(x + std::sqrt(x * x - 1)); }),
      unary("atanh", "", real("5", 67, -0.8, 0.8), [](double x) { return std::log((1 + x) / (1 - x)) / 2; }),
      unary("tan", "", real("5", 68, -1.2, 1.2), [](double x) { return std::sin(x) / std::cos(x); }),
      unary("asin", "", real("5", 69, -0.8, 0.8), [](double x) { return std::atan2(x, std::sqrt(1 - x * x)); }),
      unary("acos", "", real("5", 70, -0.8, 0.8), [](double x) { return std::atan2(std::sqrt(1 - x * x), x); }),
      unary("atan", "", real("5", 71), [](double x) { return std::asin(x / std::sqrt(1 + x * x)); }),
      unary("gelu", "erf", real("3x5", 13, -4, 4), erfGelu),
      unary("gelu", "tanh", real("3x5", 14, -4, 4), tanhGelu, " {approximate}"),
      geluGrad("erf", erfGeluSlope, ""),
      geluGrad("tanh", tanhGeluSlope, " {approximate}"),
      unary("relu", "", real("2x5", 15, -2, 2, 0.05), [](double x) { return x > 0 ? x : 0; }),
      exactly(unary("relu", "at_zero", given("3", {-1, 0, 2}), [](double x) { return x > 0 ? x : 0; }), {{0, 0, 1}}),
      step("sign", sign),
      step("floor", [](double x) { return -std::ceil(-x); }),
      step("ceil", [](double x) { return -std::floor(-x); }),
      step("round", halfToEven),
      unary("stop_gradient", "", data("3", "f64", {-1.5, 0, 2}), [](double x) { return x; }),
      unary("round", "half_to_even", data("6", "f64", {-1.5, -0.5, 0.5, 1.5, 2.5, 2.4}), halfToEven),
      {"sign",
       "zeros",
       {data("2", "f64", {-0.0, 0})},
       "%s = train.sign %a0 : tensor<2xf64>\n%r = train.reciprocal %s : tensor<2xf64>",
       "tensor<2xf64>",
       [](const std::vector<Values>&) {
         return Values{-1 / 0.0, 1 / 0.0};
       }},
      unary("sign", "at_zero", data("3", "f64", {-2, 0, 0.5}), sign),
      {"not",
       "",
       {data("2", "i1", {0, 1})},
       "%r = train.not %a0 : tensor<2xi1>",
       "tensor<2xi1>",
       [](const std::vector<Values>&) {
         return Values{1, 0};
       }},
      {"is_nan",
       "",
       {data("3", "f64", {0, kNan, 1 / 0.0})},
       "%r = train.is_nan %a0 : tensor<3xf64>",
       "tensor<3xi1>",
       [](const std::vector<Values>&) {
         return Values{0, 1, 0};
       }},
      {"cast",
       "",
       {real("5", 16)},
       "%n = train.cast %a0 : tensor<5xf64> -> tensor<5xf32>\n%r = train.cast %n : tensor<5xf32> -> tensor<5xf64>",
       "tensor<5xf64>",
       [](const std::vector<Values>& in) { return in[0]; }},
      cast("truncates", "f64", "i32", {-1.9, 1.9, 0.5, 3e9, -3e9, kNan}, {-1, 1, 0, 2147483647, -2147483648.0, 0}),
      cast("to_bool", "f64", "i1", {0, 0.1, -2, kNan}, {0, 1, 1, 1}),
      cast("integer_to_bool", "i32", "i1", {0, 256, -1}, {0, 1, 1}),
      cast("saturates", "f32", "i8", {127.9, 128, -128.9, -129, 1e30, -1 / 0.0}, {127, 127, -128, -128, 127, -128}),
      cast("saturates_unsigned", "f32", "ui8", {255.9, 256, -0.9, -1, 1e30}, {255, 255, 0, 0, 255}),
      cast("wraps", "i32", "i8", {127, 128, 256, -129}, {127, -128, 0, 127}),
      {"shift_right",
       "unsigned",
       {data("3", "ui8", {200, 200, 200}), data("3", "ui8", {3, 8, 255})},
       "%r = train.shift_right %a0, %a1 : tensor<3xui8>",
       "tensor<3xui8>",
       [](const std::vector<Values>&) {
         return Values{25, 0, 0};
       }},
      cast("to_unsigned", "i32", "ui8", {-1, 255, 256}, {255, 255, 0}),
  };
}

std::vector<OpCase> binaryCases() {
  auto power = [](double x, double y) { return std::exp2(y * std::log2(x)); };
  return {
      binary("add", "", real("2x3", 31), real("2x3", 32), [](double x, double y) { return y + x; }),
      binary("sub", "", real("2x3", 33), real("2x3", 34), [](double x, double y) { return -(y - x); }),
      binary("mul", "", real("2x3", 35), real("2x3", 36), [](double x, double y) { return y * x; }),
      binary("div", "", real("2x3", 37), real("2x3", 38, 0.4, 2), [](double x, double y) { return x * (1 / y); }),
      binary("pow", "", real("2x3", 39, 0.3, 2), real("2x3", 40), power),
      exactly(binary("pow", "at_zero", given("4", {0, 0, 3, -2}), given("4", {0, 2, 2, 2}),
                     [](double x, double y) { return y == 0 ? 1 : x * x; }),
              // 0^0 and 0^2 do not depend on the exponent, and (-2)^y has no derivative in y.
              {{0, 0, 6, -4}, {0, 0, 9 * std::log(3), kNan}}),
      binary("min", "", real("2x3", 41), real("2x3", 42), [](double x, double y) { return y < x ? y : x; }),
      binary("max", "", real("2x3", 43), real("2x3", 44), [](double x, double y) { return y > x ? y : x; }),
      exactly(binary("min", "ties", given("3", {1, 2, 3}), given("3", {1, 3, 2}),
                     [](double x, double y) { return y < x ? y : x; }),
              {{0.5, 1, 0}, {0.5, 0, 1}}),
      exactly(binary("max", "ties", given("3", {1, 2, 3}), given("3", {1, 3, 2}),
                     [](double x, double y) { return y > x ? y : x; }),
              {{0.5, 0, 1}, {0.5, 1, 0}}),
      exactly(binary(
                  "min", "bound", given("3", {1, 2, 3}), given("3", {1, 3, 2}),
                  [](double x, double y) { return y < x ? y : x; }, " {bound}"),
              {{0, 1, 0}, {1, 0, 1}}),
      exactly(binary(
                  "max", "bound", given("3", {1, 2, 3}), given("3", {1, 3, 2}),
                  [](double x, double y) { return y > x ? y : x; }, " {bound}"),
              {{0, 0, 1}, {1, 1, 0}}),
      binary("atan_ratio", "", real("5", 73), real("5", 74, 0.4, 2),
             [](double x, double y) { return std::atan2(x, y); }),
      exactly(binary("atan_ratio", "at_zero", given("4", {0, 2, -2, 0}), given("4", {0, 0, 0, 4}),
                     [](double x, double y) { return y != 0   ? 0
                                                     : x == 0 ? kNan
                                                              : std::copysign(M_PI_2, x); }),
              {{0, 0, 0, 0.25}, {0, -0.5, 0.5, 0}}),
      {"guard",
       "",
       {data("5", "f64", {0, 0, -0.0, 2, kNan}), data("5", "f64", {1, kNan, 1 / 0.0, 0, 1}),
        data("5", "f64", {kNan, 7, 1 / 0.0, 1 / 0.0, 5})},
       "%r = train.guard %a0, %a1, %a2 : tensor<5xf64>",
       "tensor<5xf64>",
       [](const std::vector<Values>&) {
         return Values{0, 7, 0, 1 / 0.0, 5};
       }},
      binary("max", "nan", data("3", "f64", {kNan, 1, 1}), data("3", "f64", {1, kNan, 2}),
             [](double x, double y) { return x + y > 2 ? y : kNan; }),
      binary("mod", "", real("5", 45, -4, 4), data("5", "f64", {1.5, -1.5, 2.25, -0.75, 3}),
             [](double x, double y) { return x - y * std::floor(x / y); }),
      binary(
          "mod", "fmod", real("5", 46, -4, 4), data("5", "f64", {1.5, -1.5, 2.25, -0.75, 3}),
          [](double x, double y) { return x - y * std::trunc(x / y); }, " {fmod}"),
      {"fma",
       "",
       {real("5", 47), real("5", 48), real("5", 49)},
       "%r = train.fma %a0, %a1, %a2 : tensor<5xf64>",
       "tensor<5xf64>",
       [](const std::vector<Values>& in) {
         Values out;
         for (size_t k = 0; k < 5; ++k) out.push_back(in[0][k] * in[1][k] + in[2][k]);
         return out;
       }},
      {"select",
       "",
       {data("4", "i1", {1, 0, 0, 1}), real("4", 50), real("4", 51)},
       "%r = train.select %a0, %a1, %a2 : tensor<4xi1>, tensor<4xf64>",
       "tensor<4xf64>",
       [](const std::vector<Values>& in) {
         return Values{in[1][0], in[2][1], in[2][2], in[1][3]};
       }},
      compare("eq", [](double x, double y) { return x == y; }),
      compare("ne", [](double x, double y) { return !(x == y); }),
      compare("lt", [](double x, double y) { return x < y; }),
      compare("le", [](double x, double y) { return x <= y; }),
      compare("gt", [](double x, double y) { return y < x; }),
      compare("ge", [](double x, double y) { return y <= x; }),
      logical("and", {0, 0, 0, 1}),
      logical("or", {0, 1, 1, 1}),
      logical("xor", {0, 1, 1, 0}),
  };
}

// x^c with a constant exponent has a cheaper gradient.
OpCase constantPower(const std::string& variant, double exponent) {
  OpCase c = binary("pow", variant, real("5", 52, 0.3, 2), data("5", "f64", Values(5, exponent)),
                    [](double x, double y) { return std::exp2(y * std::log2(x)); });
  c.inputs.pop_back();
  c.body = "%e = train.constant dense<" + std::to_string(exponent) +
           "> : tensor<5xf64>\n%r = train.pow %a0, %e : tensor<5xf64>";
  c.oracle = [exponent](const std::vector<Values>& in) {
    Values out;
    for (double x : in[0]) out.push_back(std::exp2(exponent * std::log2(x)));
    return out;
  };
  return c;
}

// A function where its derivative is not finite, with incoming gradients of 0, or where a select takes another value.
OpCase unselected(const std::string& op, double x, const std::string& operands = "%a0") {
  return exactly(
      {op,
       "unselected",
       {given("2", {x, x}), data("2", "i1", {0, 0})},
       "%c = train.constant dense<0.5> : tensor<2xf64>\n%z = train.constant dense<0.0> : tensor<2xf64>\n%f = train." +
           op + " " + operands + " : tensor<2xf64>\n%r = train.select %a1, %f, %c : tensor<2xi1>, tensor<2xf64>",
       "tensor<2xf64>",
       [](const std::vector<Values>&) {
         return Values{0.5, 0.5};
       }},
      {{0, 0}});
}

// `body` computes %s from %a0 of [2, 2]; its root in each row is a norm.
OpCase norm(const std::string& op, const std::string& variant, const std::string& body, std::vector<Values> gradients,
            Values at = {0, 0, 3, 4}, Values norms = {0, 5}) {
  return exactly({op,
                  variant,
                  {given("2x2", std::move(at))},
                  "%half = train.constant dense<0.5> : tensor<2x1xf64>\n" + body,
                  "tensor<2x1xf64>",
                  [norms](const std::vector<Values>&) { return norms; }},
                 std::move(gradients));
}

std::vector<OpCase> specialPoints() {
  const std::string squares = "%q = train.mul %a0, %a0 : tensor<2x2xf64>\n";
  const std::string sum = "%s = train.reduce sum %q [1] : tensor<2x2xf64> -> tensor<2x1xf64>\n";
  const std::string root = "%r = train.sqrt %s : tensor<2x1xf64>";
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<OpCase> all{
      norm("sqrt", "of_sum_of_squares", squares + sum + root, {{0, 0, 0.6, 0.8}}),
      norm("sqrt", "of_mean_of_squares",
           squares + "%s = train.reduce mean %q [1] : tensor<2x2xf64> -> tensor<2x1xf64>\n" + root,
           {{0, 0, 3 / std::sqrt(50), 4 / std::sqrt(50)}}, {0, 0, 6, 8}, {0, std::sqrt(50)}),
      norm("pow", "half_of_sum_of_squares", squares + sum + "%r = train.pow %s, %half : tensor<2x1xf64>",
           {{0, 0, 0.6, 0.8}}),
      // The root of another sum is infinitely steep.
      norm("sqrt", "of_sum", "%s = train.reduce sum %a0 [1] : tensor<2x2xf64> -> tensor<2x1xf64>\n" + root,
           {{infinity, infinity, 0.1, 0.1}}, {1, -1, 9, 16}, {0, 5}),
      // |x|^(1/2) in a norm: a 0 and another number in one row.
      norm("pow", "of_magnitudes",
           "%m = train.abs %a0 : tensor<2x2xf64>\n%e = train.constant dense<0.5> : tensor<2x2xf64>\n"
           "%q = train.pow %m, %e : tensor<2x2xf64>\n" +
               sum + "%two = train.constant dense<2.0> : tensor<2x1xf64>\n%r = train.pow %s, %two : tensor<2x1xf64>",
           {{0, 1, 0, 0}}, {0, 4, 0, 0}, {4, 0}),
      unselected("sqrt", -1), unselected("pow", 0, "%a0, %z"), unselected("div", 0, "%c, %a0"), unselected("exp", 1000),
      unselected("expm1", 1000), unselected("sinh", 1000), unselected("cosh", 1000), unselected("acosh", 1),
      unselected("atanh", 1), unselected("asin", 1), unselected("acos", -1), unselected("log1p", -1)};
  for (const char* op : {"sqrt", "rsqrt", "reciprocal", "log"}) {
    all.push_back(unselected(op, 0));
    all.back().variant += "_at_zero";
  }
  // x log(x): the product's other factor is infinite, too.
  OpCase product = unselected("mul", 0, "%a0, %l");
  product.body.insert(0, "%l = train.log %a0 : tensor<2xf64>\n");
  all.push_back(product);
  // A NaN operand gives NaN, also where the gradient is 0.
  OpCase nan = unselected("log", kNan);
  nan.variant = "of_nan";
  all.push_back(exactly(nan, {{kNan, kNan}}));
  return all;
}

std::vector<OpCase> integerCases() {
  return {
      integers("neg", "", {{5, -2147483648.0}}, {-5, -2147483648.0}),
      integers("abs", "", {{-5, 5}}, {5, 5}),
      integers("sign", "", {{-5, 0, 5}}, {-1, 0, 1}),
      integers("relu", "", {{-5, 5}}, {0, 5}),
      integers("add", "wraps", {{2147483647, 1}, {1, 2}}, {-2147483648.0, 3}),
      integers("sub", "", {{5, 3}, {7, 1}}, {-2, 2}),
      integers("mul", "", {{5, 65536}, {-7, 65536}}, {-35, 0}),
      integers("div", "truncates", {{7, -7, 7}, {2, 2, -2}}, {3, -3, -3}),
      integers("div", "by_zero", {{7, 0, -2147483648.0}, {0, 0, -1}}, {0, 0, -2147483648.0}),
      integers("mod", "by_zero", {{7, 0, -2147483648.0}, {0, 0, -1}}, {0, 0, 0}),
      integers("mod", "", {{7, -7, 7, -7}, {3, 3, -3, -3}}, {1, 2, -2, -1}),
      integers("mod", "integer_fmod", {{7, -7, 7, -7}, {3, 3, -3, -3}}, {1, -1, 1, -1}, " {fmod}"),
      integers("pow", "", {{3, 2, -1, 2}, {4, 0, -3, -1}}, {81, 1, -1, 0}),
      integers("not", "", {{0, 5, -1}}, {-1, -6, 0}),
      integers("and", "bitwise", {{12, -1, -4}, {10, 5, 7}}, {8, 5, 4}),
      integers("or", "bitwise", {{12, -1, -4}, {10, 5, 3}}, {14, -1, -1}),
      integers("xor", "bitwise", {{12, -1, -4}, {10, 5, 3}}, {6, -6, -1}),
      integers("shift_left", "", {{3, -3, 1, 1, 1}, {4, 1, 31, 32, -1}}, {48, -6, -2147483648.0, 0, 0}),
      integers("shift_right", "", {{48, -7, -7, 7, -7}, {4, 1, 40, 32, -1}}, {3, -4, -1, 0, -1}),
      integers("min", "", {{3, -2}, {4, -3}}, {3, -3}),
      integers("max", "", {{3, -2}, {4, -3}}, {4, -2}),
  };
}

}  // namespace

std::vector<OpCase> elementwiseCases() {
  std::vector<OpCase> all = unaryCases();
  for (auto part : {binaryCases(), specialPoints(), integerCases()}) all.insert(all.end(), part.begin(), part.end());
  all.push_back(constantPower("square", 2));
  all.push_back(constantPower("cube", 3));
  all.push_back(constantPower("one", 1));
  all.push_back(constantPower("half", 0.5));
  return all;
}

}  // namespace sheaf::test
