// Every elementwise op against the reference evaluator, and the accuracy of the elementary functions.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "ir/Train/TrainDialect.h"
#include "test/codegen/KernelRunner.h"

using namespace sheaf;
using namespace sheaf::test;
using sheaf::train::Tensor;

namespace {

std::string type(int64_t n, const std::string& element) {
  return "tensor<" + std::to_string(n) + "x" + element + ">";
}

// A function that applies one op; `text` is the op with operands %a, %b, %c, without its types.
std::string function(int64_t n, const std::vector<std::string>& operands, const std::string& text,
                     const std::string& types, const std::string& result) {
  std::string source = "func.func @f(";
  for (size_t i = 0; i < operands.size(); ++i)
    source += std::string(i ? ", %" : "%") + char('a' + i) + ": " + type(n, operands[i]);
  return source + ") -> " + type(n, result) + " {\n  %r = train." + text + " : " + types +
         "\n  return %r : " + type(n, result) + "\n}";
}

constexpr const char* kFuse = "train-assign-fusions,train-fuse";

// The distance in units in the last place of the exact value's format.
double ulps(double value, double exact, bool isDouble) {
  if (std::isnan(exact)) return std::isnan(value) ? 0 : std::numeric_limits<double>::infinity();
  if (value == exact) return 0;
  if (std::isinf(exact) || std::isinf(value)) return std::numeric_limits<double>::infinity();
  int exponent = 0;
  std::frexp(exact, &exponent);
  exponent = std::max(exponent, isDouble ? -1021 : -125);
  return std::abs(value - exact) / std::ldexp(1.0, exponent - (isDouble ? 53 : 24));
}

struct Function {
  const char* name;
  double (*exact)(double);
  double low, high;
  double limit;  // in ulp
};

long double sigmoid(long double x) {
  return 1 / (1 + std::exp(-x));
}
long double softplus(long double x) {
  return std::max(x, 0.0L) + std::log1p(std::exp(-std::fabs(x)));
}
template <long double (*F)(long double)>
double narrow(double x) {
  return static_cast<double>(F(x));
}
#define SHEAF_FUNCTION(f) narrow<static_cast<long double (*)(long double)>(f)>

const Function kFunctions[] = {
    {"exp", SHEAF_FUNCTION(std::exp), -87.0, 88.7, 2.0},
    {"log", SHEAF_FUNCTION(std::log), 1e-30, 3.0, 2.0},
    {"log", SHEAF_FUNCTION(std::log), 0.5, 1e30, 2.0},
    {"tanh", SHEAF_FUNCTION(std::tanh), -10.0, 10.0, 2.5},
    {"tanh", SHEAF_FUNCTION(std::tanh), -0.7, 0.7, 2.5},
    {"sigmoid", SHEAF_FUNCTION(sigmoid), -80.0, 80.0, 4.0},
    {"softplus", SHEAF_FUNCTION(softplus), -87.0, 87.0, 3.0},
    {"softplus", SHEAF_FUNCTION(softplus), -17.5, -13.5, 3.0},
    {"erf", SHEAF_FUNCTION(std::erf), -4.5, 4.5, 2.5},
    {"erf", SHEAF_FUNCTION(std::erf), -1e-3, 1e-3, 2.5},
    {"sin", SHEAF_FUNCTION(std::sin), -100.0, 100.0, 2.5},
    {"sin", SHEAF_FUNCTION(std::sin), -1e4, 1e4, 2.5},
    {"cos", SHEAF_FUNCTION(std::cos), -100.0, 100.0, 2.5},
    {"cos", SHEAF_FUNCTION(std::cos), -1e4, 1e4, 2.5},
    {"tan", SHEAF_FUNCTION(std::tan), -100.0, 100.0, 3.5},
    {"tan", SHEAF_FUNCTION(std::tan), -1e4, 1e4, 3.5},
    {"asin", SHEAF_FUNCTION(std::asin), -1.0, 1.0, 2.5},
    {"asin", SHEAF_FUNCTION(std::asin), -1e-3, 1e-3, 2.5},
    {"acos", SHEAF_FUNCTION(std::acos), -1.0, 1.0, 2.0},
    {"acos", SHEAF_FUNCTION(std::acos), 0.999, 1.0, 2.0},
    {"atan", SHEAF_FUNCTION(std::atan), -4.0, 4.0, 2.5},
    {"atan", SHEAF_FUNCTION(std::atan), -1e4, 1e4, 2.5},
    {"expm1", SHEAF_FUNCTION(std::expm1), -50.0, 88.7, 2.0},
    {"expm1", SHEAF_FUNCTION(std::expm1), -1.0, 1.0, 2.0},
    {"expm1", SHEAF_FUNCTION(std::expm1), -1e-3, 1e-3, 2.0},
    {"log1p", SHEAF_FUNCTION(std::log1p), -0.999, 3.0, 2.0},
    {"log1p", SHEAF_FUNCTION(std::log1p), -1e-3, 1e-3, 2.0},
    {"log1p", SHEAF_FUNCTION(std::log1p), 0.5, 1e30, 2.0},
    {"sinh", SHEAF_FUNCTION(std::sinh), -89.0, 89.0, 2.0},
    {"sinh", SHEAF_FUNCTION(std::sinh), -2.0, 2.0, 2.0},
    {"cosh", SHEAF_FUNCTION(std::cosh), -89.0, 89.0, 2.0},
    {"cosh", SHEAF_FUNCTION(std::cosh), -2.0, 2.0, 2.0},
    {"asinh", SHEAF_FUNCTION(std::asinh), -3.0, 3.0, 2.5},
    {"asinh", SHEAF_FUNCTION(std::asinh), -1e30, 1e30, 2.5},
    {"asinh", SHEAF_FUNCTION(std::asinh), -1e-3, 1e-3, 2.5},
    {"acosh", SHEAF_FUNCTION(std::acosh), 1.0, 1.05, 2.8},
    {"acosh", SHEAF_FUNCTION(std::acosh), 1.0, 10.0, 2.8},
    {"acosh", SHEAF_FUNCTION(std::acosh), 1.0, 1e30, 2.8},
    {"atanh", SHEAF_FUNCTION(std::atanh), -0.9999, 0.9999, 2.5},
    {"atanh", SHEAF_FUNCTION(std::atanh), -1e-3, 1e-3, 2.5},
    {"sqrt", SHEAF_FUNCTION(std::sqrt), 0.0, 1e6, 0.5},
};

TEST(Math, ElementaryFunctionsAreAccurate) {
  constexpr int64_t n = 20011;
  for (bool isDouble : {false, true}) {
    std::string element = isDouble ? "f64" : "f32";
    for (const Function& f : kFunctions) {
      Program program(function(n, {element}, std::string(f.name) + " %a", type(n, element), element), kFuse);
      auto arguments = program.randomArguments(0);
      for (int64_t i = 0; i < n; ++i) {
        double x = f.low + (f.high - f.low) * static_cast<double>(i) / (n - 1);
        arguments[0].f[i] = isDouble ? x : static_cast<float>(x);
      }
      auto result = program.run(arguments)[0];
      double worst = 0, where = 0;
      for (int64_t i = 0; i < n; ++i) {
        double x = arguments[0].f[i];
        double error = ulps(result.f[i], f.exact(x), isDouble);
        if (error > worst) worst = error, where = x;
      }
      EXPECT_LE(worst, f.limit + (isDouble ? 1.0 : 0.0)) << element << " " << f.name << " at " << where;
    }
  }
}

TEST(Math, SpecialValues) {
  double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const double inputs[] = {0.0,    -0.0, infinity, -infinity, nan,    1.0, -1.0, 1e-40,
                           -1e-40, 3e38, -3e38,    100.0,     -110.0, 2.0, -2.0, 89.2};
  struct Case {
    const char* name;
    double (*exact)(double);
  };
  const Case cases[] = {{"exp", std::exp},     {"log", std::log},     {"tanh", std::tanh}, {"erf", std::erf},
                        {"sqrt", std::sqrt},   {"floor", std::floor}, {"ceil", std::ceil}, {"round", std::nearbyint},
                        {"asin", std::asin},   {"acos", std::acos},   {"atan", std::atan}, {"expm1", std::expm1},
                        {"log1p", std::log1p}, {"sinh", std::sinh},   {"cosh", std::cosh}, {"asinh", std::asinh},
                        {"acosh", std::acosh}, {"atanh", std::atanh}};
  constexpr int64_t n = std::size(inputs);
  for (const char* element : {"f32", "f64"})
    for (const Case& c : cases) {
      Program program(function(n, {element}, std::string(c.name) + " %a", type(n, element), element), kFuse);
      auto arguments = program.randomArguments(0);
      bool isDouble = std::string(element) == "f64";
      for (int64_t i = 0; i < n; ++i) arguments[0].f[i] = isDouble ? inputs[i] : static_cast<float>(inputs[i]);
      auto result = program.run(arguments)[0];
      for (int64_t i = 0; i < n; ++i) {
        double x = arguments[0].f[i], exact = isDouble ? c.exact(x) : static_cast<float>(c.exact(x));
        EXPECT_LE(ulps(result.f[i], exact, isDouble), 3) << c.name << "(" << x << ") is " << result.f[i];
        EXPECT_TRUE(exact != 0 || std::signbit(result.f[i]) == std::signbit(exact)) << c.name << "(" << x << ")";
      }
    }
}

// Down to the last number that is rounded to 0.
TEST(Math, ExpKeepsSubnormalResults) {
  constexpr int64_t n = 4001;
  for (const char* element : {"f32", "f64"}) {
    const bool isDouble = std::string(element) == "f64";
    Program program(function(n, {element}, "exp %a", type(n, element), element), kFuse);
    auto arguments = program.randomArguments(0);
    const double high = isDouble ? -708 : -87, low = isDouble ? -746 : -105;
    for (int64_t i = 0; i < n; ++i) {
      const double x = high + (low - high) * static_cast<double>(i) / (n - 1);
      arguments[0].f[i] = isDouble ? x : static_cast<float>(x);
    }
    for (Calls calls : {Calls{0, false, {}}, Calls{0, false, 0}}) {
      auto result = program.run(arguments, calls);
      int64_t subnormal = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double x = arguments[0].f[i], exact = isDouble ? std::exp(x) : static_cast<float>(std::exp(x));
        const double least = isDouble ? 0x1p-1074 : 0x1p-149;
        EXPECT_NEAR(result[0].f[i], exact, 2 * exact * (isDouble ? 0x1p-52 : 0x1p-23) + least)
            << element << " exp of " << x;
        subnormal += result[0].f[i] > 0 && result[0].f[i] < (isDouble ? 0x1p-1022 : 0x1p-126);
      }
      EXPECT_GT(subnormal, n / 2);
    }
  }
}

// Results of large angles are within 1e-6 (1 + y^2) of the exact value y; f64 angles of 2^50 and more give NaN.
TEST(Math, LargeAnglesAreAccurateOrNaN) {
  constexpr int64_t n = 4000;
  for (const char* element : {"f32", "f64"})
    for (const char* name : {"sin", "cos", "tan"}) {
      const bool isDouble = std::string(element) == "f64";
      Program program(function(n, {element}, std::string(name) + " %a", type(n, element), element), kFuse);
      auto arguments = program.randomArguments(0);
      for (int64_t i = 0; i < n; ++i)
        arguments[0].f[i] = (i % 2 ? -1 : 1) * std::pow(10, 5 + 33.5 * static_cast<double>(i) / n);
      arguments[0] = fromBytes(arguments[0].type, toBytes(arguments[0]).data());
      for (Calls calls : {Calls{0, false, {}}, Calls{0, false, 0}}) {
        auto result = program.run(arguments, calls);
        for (int64_t i = 0; i < n; ++i) {
          const double x = arguments[0].f[i], found = result[0].f[i];
          const double exact = *name == 's' ? std::sin(x) : *name == 'c' ? std::cos(x) : std::tan(x);
          if (isDouble && std::fabs(x) >= 0x1p50)
            EXPECT_TRUE(std::isnan(found)) << name << "(" << x << ") is " << found;
          else
            EXPECT_NEAR(found, exact, 1e-6 * (1 + exact * exact)) << element << " " << name << "(" << x << ")";
        }
      }
    }
}

TEST(Math, PowersMatchTheLibrary) {
  const double bases[] = {2.5, -2.5, 0.0, -0.0, 1.0, -1.0, 1e-3, 7.0};
  const double exponents[] = {0.0, 1.0, 2.0, 3.0, -2.0, -3.0, 0.5, 2.7, 10.0, -0.3};
  constexpr int64_t n = std::size(bases) * std::size(exponents);
  Program program(function(n, {"f32", "f32"}, "pow %a, %b", type(n, "f32"), "f32"), kFuse);
  auto arguments = program.randomArguments(0);
  for (int64_t i = 0; i < n; ++i) {
    arguments[0].f[i] = static_cast<float>(bases[i % std::size(bases)]);
    arguments[1].f[i] = static_cast<float>(exponents[i / std::size(bases)]);
  }
  auto result = program.run(arguments)[0];
  for (int64_t i = 0; i < n; ++i) {
    double exact = std::pow(arguments[0].f[i], arguments[1].f[i]);
    EXPECT_LE(ulps(result.f[i], exact, false), 1.0) << arguments[0].f[i] << "^" << arguments[1].f[i];
  }
}

struct OpCase {
  const char* text;
  std::vector<std::string> operands;
  std::string result;
  const char* types;  // with T for the operands' and R for the result's type
};

void replaceAll(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

std::set<std::string> checkedOps;

void checkOp(const OpCase& op, double tolerance, int64_t limit = 7) {
  checkedOps.insert("train." + std::string(op.text).substr(0, std::string(op.text).find(' ')));
  constexpr int64_t n = 1003;
  std::string types = op.types;
  replaceAll(types, "T", type(n, op.operands.back()));
  replaceAll(types, "R", type(n, op.result));
  replaceAll(types, "B", type(n, "i1"));
  Program program(function(n, op.operands, op.text, types, op.result), kFuse);
  ASSERT_EQ(program.fusions.size(), 1u) << op.text;
  auto arguments = program.randomArguments(3, 3.0, limit);
  // Special values meet one another, too; what integers they become is not defined.
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const double special[] = {infinity, -infinity, nan, 0.0, -0.0, 30000.0, -30000.0};
  constexpr size_t count = std::size(special);
  const bool toInteger = std::string(op.text).starts_with("cast") && op.result.find('f') == std::string::npos;
  size_t stride = 1;
  for (Tensor& argument : arguments) {
    if (!argument.isFloat() || toInteger) continue;
    for (size_t i = 0; i < count * count * count; ++i) argument.f[i] = special[i / stride % count];
    argument = fromBytes(argument.type, toBytes(argument).data());
    stride *= count;
  }
  auto expected = program.reference(arguments);
  // What is too large for the type is an infinity.
  for (Tensor& tensor : expected) tensor = fromBytes(tensor.type, toBytes(tensor).data());
  for (Calls calls : {Calls{0, false, {}}, Calls{1, true, {}}}) {
    auto result = program.run(arguments, calls);
    EXPECT_LE(maxError(result[0], expected[0]), tolerance) << op.text << " " << types;
  }
  // The same arithmetic, so the same bits.
  auto cpu = program.run(arguments), gpu = program.run(arguments, {0, false, 0});
  EXPECT_EQ(toBytes(cpu[0]), toBytes(gpu[0])) << op.text << " on a GPU";
}

// Or other tests could not see what overflows.
TEST(MaxError, InfinitiesAreErrors) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  auto error = [&](double a, double b) {
    Tensor left = Tensor::zeros(mlir::RankedTensorType::get({1}, mlir::Float64Type::get(&context)));
    Tensor right = left;
    left.f[0] = a, right.f[0] = b;
    return maxError(left, right);
  };
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(error(3, 1), 1);
  for (double same : {infinity, -infinity, nan, 0.0}) EXPECT_EQ(error(same, same), 0);
  for (double other : {-infinity, nan, 1e300, 0.0}) {
    EXPECT_EQ(error(infinity, other), infinity) << other;
    EXPECT_EQ(error(other, infinity), infinity) << other;
  }
}

std::vector<mlir::RegisteredOperationName> elementwiseOps(mlir::MLIRContext& context) {
  context.loadDialect<train::TrainDialect>();
  std::vector<mlir::RegisteredOperationName> ops;
  for (mlir::RegisteredOperationName op : context.getRegisteredOperations())
    if (op.hasInterface<train::FusableElementwise>()) ops.push_back(op);
  return ops;
}

// From a float to one of its type.
bool isFunction(mlir::RegisteredOperationName op) {
  return op.hasTrait<mlir::OpTrait::OneOperand>() && op.hasTrait<mlir::OpTrait::SameOperandsAndResultType>() &&
         op.getStringRef() != "train.not";
}

// All that the dialect has.
TEST(Math, EveryFunction) {
  mlir::MLIRContext context;
  int count = 0;
  for (mlir::RegisteredOperationName op : elementwiseOps(context)) {
    if (!isFunction(op)) continue;
    ++count;
    std::string name = op.stripDialect().str();
    for (const char* e : {"f32", "f64", "bf16", "f16"}) {
      double tolerance = std::string(e) == "f64" ? 1e-13 : std::string(e) == "f32" ? 1e-6 : 5e-3;
      checkOp({(name + " %a").c_str(), {e}, e, "T"}, tolerance);
    }
  }
  EXPECT_GT(count, 20);
}

TEST(Math, EveryElementwiseOp) {
  for (const char* e : {"f32", "f64", "bf16", "f16"}) {
    double tolerance = std::string(e) == "f64" ? 1e-13 : std::string(e) == "f32" ? 1e-6 : 5e-3;
    for (const char* op : {"add %a, %b", "sub %a, %b", "mul %a, %b", "min %a, %b", "max %a, %b"})
      checkOp({op, {e, e}, e, "T"}, tolerance);
    checkOp({"is_nan %a", {e}, "i1", "T"}, 0);
    checkOp({"fma %a, %b, %c", {e, e, e}, e, "T"}, tolerance);
    checkOp({"guard %a, %b, %c", {e, e, e}, e, "T"}, 0);
    checkOp({"atan_ratio %a, %b", {e, e}, e, "T"}, 4 * tolerance);
    checkOp({"compare lt %a, %b", {e, e}, "i1", "T"}, 0);
    checkOp({"select %a, %b, %c", {"i1", e, e}, e, "B, T"}, 0);
  }
  checkOp({"pow %a, %b", {"f64", "f64"}, "f64", "T"}, 1e-12);
  for (const char* op : {"div %a, %b", "mod %a, %b", "mod %a, %b {fmod}"}) {
    checkOp({op, {"f32", "f32"}, "f32", "T"}, 2e-6);
    checkOp({op, {"f64", "f64"}, "f64", "T"}, 1e-13);
  }
  for (const char* e : {"i32", "i64", "i8", "ui8"}) {
    for (const char* op : {"add %a, %b", "sub %a, %b", "mul %a, %b", "min %a, %b", "max %a, %b", "pow %a, %b"})
      checkOp({op, {e, e}, e, "T"}, 0, 300);
    for (const char* op : {"and %a, %b", "or %a, %b", "xor %a, %b"}) checkOp({op, {e, e}, e, "T"}, 0, 300);
    for (const char* op : {"shift_left %a, %b", "shift_right %a, %b"}) checkOp({op, {e, e}, e, "T"}, 0, 80);
    for (const char* op : {"neg %a", "abs %a", "sign %a", "relu %a", "not %a"}) checkOp({op, {e}, e, "T"}, 0, 300);
  }
  for (const char* predicate : {"eq", "ne", "lt", "le", "gt", "ge"})
    checkOp({(std::string("compare ") + predicate + " %a, %b").c_str(), {"i64", "i64"}, "i1", "T"}, 0);
  for (const char* op : {"and %a, %b", "or %a, %b", "xor %a, %b"}) checkOp({op, {"i1", "i1"}, "i1", "T"}, 0);
  checkOp({"not %a", {"i1"}, "i1", "T"}, 0);
  for (const char* from : {"f32", "f64", "bf16", "f16", "i64", "i32", "i8", "ui8", "i1"})
    for (const char* to : {"f32", "f64", "bf16", "f16", "i64", "i32", "i1"})
      if (std::string(from) != to) {
        double tolerance = std::string(to).ends_with("f16") ? 5e-3 : std::string(to) == "f32" ? 1e-7 : 0;
        checkOp({"cast %a", {from}, to, "T -> R"}, tolerance);
      }
  mlir::MLIRContext context;
  for (mlir::RegisteredOperationName op : elementwiseOps(context))
    EXPECT_TRUE(isFunction(op) || checkedOps.count(op.getStringRef().str()))
        << op.getStringRef().str() << " has no kernel test";
}

TEST(Math, IntegerDivisionNeverTraps) {
  for (const char* element : {"i32", "i64"})
    for (const char* op : {"div %a, %b", "mod %a, %b", "mod %a, %b {fmod}"}) {
      Program program(function(6, {element, element}, op, type(6, element), element), kFuse);
      auto arguments = program.randomArguments(0);
      int64_t lowest = std::string(element) == "i32" ? INT32_MIN : INT64_MIN;
      arguments[0].i = {7, -7, 7, -7, 5, lowest};
      arguments[1].i = {2, 2, -2, -2, 0, -1};
      auto result = program.run(arguments)[0];
      std::vector<int64_t> first(result.i.begin(), result.i.begin() + 4);
      std::string name = op;
      if (name.substr(0, 3) == "div")
        EXPECT_EQ(first, (std::vector<int64_t>{3, -3, -3, 3}));
      else if (name.find("fmod") != std::string::npos)
        EXPECT_EQ(first, (std::vector<int64_t>{1, -1, 1, -1}));
      else
        EXPECT_EQ(first, (std::vector<int64_t>{1, 1, -1, -1}));
      // The lowest number by -1 wraps around.
      EXPECT_EQ(result.i[5], name.substr(0, 3) == "div" ? lowest : 0) << op << " " << element;
    }
}

// Numbers at which formats, conversions and hardware differ, as elements of a type: their multiset may repeat some.
std::vector<double> edges(const std::string& element) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (element[0] == 'f' || element[0] == 'b')
    return {0.0,     -0.0,  0.5,   -0.5,   1,     -1,     1.5,    -2.5,     7,          -7,         127.9,
            -128.9,  255.5, 65504, -1e4,   3e9,   -3e9,   0x1p31, -0x1p31,  0x1p24 + 1, 0x1p53 + 2, 0x1p63,
            -0x1p63, 1e19,  -1e19, 1e-300, 1e-45, -3e-39, 3.4e38, -1.7e308, infinity,   -infinity,  std::nan("")};
  return {0,    1,   2,         3,         7,        -1,        -2,         -7,     63,     127,
          -128, 255, INT32_MAX, INT32_MIN, 16777217, -33554435, 0x1p53 + 2, 0x1p62, -0x1p63};
}

// An op on %a and %b with its types, and the element type of its result.
struct EdgeOp {
  std::string text, result;
};

// Kernels give the bits that the evaluator defines, of all pairs of edges; one NaN is as good as another.
void checkEdges(const std::string& element, const std::vector<EdgeOp>& ops) {
  const std::vector<double> values = edges(element);
  const int64_t n = int64_t(values.size() * values.size());
  std::string body, names, types;
  for (auto [i, op] : llvm::enumerate(ops)) {
    std::string text = op.text, name = "%r" + std::to_string(i);
    replaceAll(text, "T", type(n, element));
    replaceAll(text, "R", type(n, op.result));
    body += "  " + name + " = train." + text + "\n";
    names += (i ? ", " : "") + name;
    types += (i ? ", " : "") + type(n, op.result);
  }
  std::string argument = type(n, element);
  Program program("func.func @f(%a: " + argument + ", %b: " + argument + ") -> (" + types + ") {\n" + body +
                      "  return " + names + " : " + types + "\n}",
                  kFuse);
  ASSERT_GE(program.fusions.size(), 1u);
  auto arguments = program.randomArguments(0);
  for (int i : {0, 1}) {
    train::Tensor& t = arguments[i];
    for (int64_t k = 0; k < n; ++k) {
      double value = values[(i ? k / int64_t(values.size()) : k) % values.size()];
      if (t.isFloat())
        t.f[k] = value;
      else
        t.i[k] = int64_t(value);
    }
    t = fromBytes(t.type, toBytes(t).data());
  }
  auto text = [](const train::Tensor& t, int64_t k) { return std::to_string(t.isFloat() ? t.f[k] : double(t.i[k])); };
  auto expected = program.reference(arguments, /*round=*/true);
  for (Calls calls : {Calls{0, false, {}}, Calls{0, false, 0}}) {
    auto found = program.run(arguments, calls);
    for (size_t r = 0; r < ops.size(); ++r) {
      const train::Tensor &x = found[r], &y = expected[r];
      auto same = [&](int64_t k) {
        if (!x.isFloat()) return x.i[k] == y.i[k];
        return std::isnan(x.f[k]) ? std::isnan(y.f[k])
                                  : x.f[k] == y.f[k] && std::signbit(x.f[k]) == std::signbit(y.f[k]);
      };
      for (int64_t k = 0; k < n; ++k) {
        if (same(k)) continue;
        ADD_FAILURE() << ops[r].text << " of " << element << " to " << ops[r].result << ": " << text(x, k) << ", not "
                      << text(y, k) << ", of " << text(arguments[0], k) << " and " << text(arguments[1], k)
                      << (calls.gpu ? " on a GPU" : "");
        break;
      }
    }
  }
}

TEST(Math, EdgesAreAsTheEvaluatorDefinesThem) {
  const std::vector<std::string> floats{"f32", "f64", "bf16", "f16"}, integers{"i8", "i16", "i32", "i64", "ui8"};
  auto casts = [&](const std::string& from, std::vector<EdgeOp>& ops) {
    for (const auto& types : {floats, integers, {"i1"}})
      for (const std::string& to : types)
        if (to != from) ops.push_back({"cast %a : T -> R", to});
  };
  for (const std::string& e : floats) {
    std::vector<EdgeOp> ops;
    for (const char* op : {"neg", "abs", "sign", "relu", "floor", "ceil", "round"})
      ops.push_back({std::string(op) + " %a : T", e});
    for (const char* op : {"add", "sub", "mul", "div", "min", "max"})
      ops.push_back({std::string(op) + " %a, %b : T", e});
    for (const char* p : {"eq", "ne", "lt", "le"}) ops.push_back({std::string("compare ") + p + " %a, %b : T", "i1"});
    casts(e, ops);
    checkEdges(e, ops);
  }
  for (const std::string& e : integers) {
    std::vector<EdgeOp> ops;
    for (const char* op : {"neg", "abs", "sign", "relu"}) ops.push_back({std::string(op) + " %a : T", e});
    for (const char* op : {"add", "sub", "mul", "div", "mod", "pow", "min", "max"})
      ops.push_back({std::string(op) + " %a, %b : T", e});
    ops.push_back({"mod %a, %b {fmod} : T", e});
    for (const char* p : {"lt", "ge"}) ops.push_back({std::string("compare ") + p + " %a, %b : T", "i1"});
    casts(e, ops);
    checkEdges(e, ops);
  }
}

}  // namespace
