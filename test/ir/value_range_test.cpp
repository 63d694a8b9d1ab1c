// The claims on a value's range hold for every op: they are compared with the values that the op computes of operands
// at zeros, bounds and infinities.
#include "ir/Train/ValueRange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "ir/Train/Evaluator.h"
#include "ir/Train/TrainDialect.h"
#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "test/ir/OpCase.h"

using namespace sheaf::test;
using namespace sheaf::train;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Operands of which something is known: ops that compute %x of %p, T being the type of both, and values that %x can
// have.
struct Domain {
  std::string name, ops;
  Values values;
};

const std::vector<Domain>& domains() {
  static const std::string finite = "%s = train.sin %p : T\n%c = train.constant dense<1.0e3> : T\n";
  static const std::string positive = finite +
                                      "%f = train.mul %s, %c : T\n%a = train.abs %f : T\n"
                                      "%h = train.constant dense<5.0e-1> : T\n";
  static const std::vector<Domain> all{
      {"any", "%x = train.reshape %p : T -> T", {-kInfinity, -1000, -1, -0.5, -0.0, 0, 0.5, 1, 1000, kInfinity}},
      {"computed",
       finite + "%f = train.mul %s, %c : T\n%a = train.abs %f : T\n%x = train.log %a : T",
       {-kInfinity, -1, -0.5, 0, 0.5, 6}},
      {"finite", finite + "%x = train.mul %s, %c : T", {-1000, -2, -1, -0.5, -0.0, 0, 0.5, 1, 2, 1000}},
      {"not negative", finite + "%f = train.mul %s, %c : T\n%x = train.abs %f : T", {0, 0.5, 1, 2, 1000}},
      {"positive", positive + "%x = train.add %a, %h : T", {0.5, 1, 2, 30}},
      {"negative", positive + "%y = train.add %a, %h : T\n%x = train.neg %y : T", {-0.5, -1, -2, -30}},
      {"bounded", "%x = train.sin %p : T", {-1, -0.5, -0.0, 0, 0.5, 1}},
  };
  return all;
}

bool mayBeInfiniteOf(const Domain& domain) {
  return llvm::any_of(domain.values, [](double x) { return std::isinf(x); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

class ValueRangeTest : public testing::TestWithParam<OpCase> {
 protected:
  mlir::MLIRContext context{mlir::MLIRContext::Threading::DISABLED};

  ValueRangeTest() { context.loadDialect<mlir::func::FuncDialect, TrainDialect>(); }

  static bool varies(const Input& input) { return input.trainable && input.element == "f64"; }

  // A function of the case's op. With `ofDomains`, its operands that vary are those of domains, else they are read.
  std::string text(const std::vector<const Domain*>* ofDomains) const {
    const OpCase& c = GetParam();
    std::string head, arguments, body;
    for (size_t k = 0; k < c.inputs.size(); ++k) {
      const std::string name = "a" + std::to_string(k), type = c.inputs[k].type();
      if (!varies(c.inputs[k])) {
        arguments += (arguments.empty() ? "%" : ", %") + name + ": " + type;
        continue;
      }
      head += "train.parameter @" + name + " : " + type + " {trainable = true}\n";
      const std::string value = ofDomains ? name + "p" : name;
      body += "%" + value + " = train.read @" + name + " : " + type + "\n";
      if (!ofDomains) continue;
      std::string ops = replaced((*ofDomains)[k]->ops, " T", " " + type);
      for (const char* local : {"p", "s", "c", "f", "a", "h", "y"})
        for (const char* after : {" ", ","})
          ops = replaced(ops, std::string("%") + local + after, "%" + name + local + after);
      ops = replaced(ops, "%x ", "%" + name + " ");
      body += ops + "\n";
    }
    return head + "func.func @step(" + arguments + ") -> " + c.result + " {\n" + body + c.body +
           "\nreturn %r : " + c.result + "\n}\n";
  }

  Tensor tensorOf(const std::string& type, const Values& values) {
    Tensor t = Tensor::zeros(mlir::cast<mlir::RankedTensorType>(mlir::parseType(type, &context)));
    for (size_t k = 0; k < values.size(); ++k)
      t.isFloat() ? void(t.f.at(k) = values[k]) : void(t.i.at(k) = int64_t(values[k]));
    return t;
  }
};

// Ops whose claim that no element is infinite is not about infinite operands: a limit is there to take them away.
const std::set<std::string> kLimits{"max", "min"};

TEST_P(ValueRangeTest, ClaimsHold) {
  const OpCase& c = GetParam();
  auto type = mlir::cast<mlir::RankedTensorType>(mlir::parseType(c.result, &context));
  if (!mlir::isa<mlir::FloatType>(type.getElementType())) return;
  auto plain = mlir::parseSourceString<mlir::ModuleOp>(text(nullptr), &context);
  ASSERT_TRUE(plain) << text(nullptr);
  std::vector<Tensor> arguments;
  size_t operands = 0;
  for (const Input& input : c.inputs) {
    operands += varies(input);
    if (!varies(input)) arguments.push_back(tensorOf(input.type(), input.values));
  }
  std::mt19937 random(1);
  for (const Domain& first : domains())
    for (const Domain& others : domains()) {
      if (operands < 2 && &first != &others) continue;
      std::vector<const Domain*> chosen(c.inputs.size(), &others);
      for (size_t k = 0; k < c.inputs.size(); ++k)
        if (varies(c.inputs[k])) {
          chosen[k] = &first;
          break;
        }
      auto module = mlir::parseSourceString<mlir::ModuleOp>(text(&chosen), &context);
      ASSERT_TRUE(module) << text(&chosen);
      auto step = module->lookupSymbol<mlir::func::FuncOp>("step");
      const mlir::Value result = step.getBody().front().getTerminator()->getOperand(0);
      const bool positive = isPositive(result), notNegative = isNotNegative(result), notZero = isNotZero(result),
                 bounded = isBoundedAbove(result), infinite = mayBeInfinite(result);
      const bool any = mayBeInfiniteOf(first) || mayBeInfiniteOf(others);
      for (int round = 0; round < 20; ++round) {
        std::map<std::string, Tensor> parameters;
        for (size_t k = 0; k < c.inputs.size(); ++k) {
          if (!varies(c.inputs[k])) continue;
          Values values(c.inputs[k].values.size());
          for (double& value : values) value = chosen[k]->values[random() % chosen[k]->values.size()];
          parameters["a" + std::to_string(k)] = tensorOf(c.inputs[k].type(), values);
        }
        // Claims on signs are about numbers of moderate size, and data and parameters are taken for those.
        bool signs = true;
        for (size_t k = 0; k < c.inputs.size(); ++k)
          for (double x : parameters["a" + std::to_string(k)].f)
            signs &= std::isinf(x) ? chosen[k]->name != "any" : std::fabs(x) <= 100;
        auto evaluation = evaluateFunction(plain->lookupSymbol("step"), arguments, parameters);
        ASSERT_TRUE(mlir::succeeded(evaluation));
        for (double value : evaluation->results[0].f) {
          if (std::isnan(value)) continue;
          const std::string where = "of operands that are " + first.name + " and " + others.name;
          const bool limited = any && kLimits.contains(c.op);
          ASSERT_TRUE(infinite || limited || std::isfinite(value)) << value << " " << where;
          if (!signs) continue;
          ASSERT_TRUE(!positive || value > 0) << value << " " << where;
          ASSERT_TRUE(!notNegative || value >= 0) << value << " " << where;
          ASSERT_TRUE(!notZero || value != 0) << value << " " << where;
          ASSERT_TRUE(!bounded || value <= 88) << value << " " << where;
        }
      }
    }
}

std::string nameOf(const testing::TestParamInfo<OpCase>& info) {
  return info.param.op + (info.param.variant.empty() ? "" : "_" + info.param.variant);
}

INSTANTIATE_TEST_SUITE_P(Elementwise, ValueRangeTest, testing::ValuesIn(elementwiseCases()), nameOf);

}  // namespace
