// What the numeric cases of the ops do not reach: rounding, element types, attributes, random numbers, errors.
#include "ir/Train/Evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ir/Train/Philox.h"
#include "ir/Train/TrainDialect.h"
#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"

using namespace sheaf::train;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

class EvaluatorTest : public testing::Test {
 protected:
  mlir::MLIRContext context{mlir::MLIRContext::Threading::DISABLED};
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::string errors;
  mlir::ScopedDiagnosticHandler handler{&context, [&](mlir::Diagnostic& d) {
                                          errors += d.str() + "\n";
                                          return mlir::success();
                                        }};

  EvaluatorTest() { context.loadDialect<mlir::func::FuncDialect, TrainDialect>(); }

  mlir::FailureOr<Evaluation> run(const std::string& text, std::vector<Tensor> arguments = {},
                                  const EvaluatorOptions& options = {}) {
    module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
    if (!module) return mlir::failure();
    return evaluateFunction(module->lookupSymbol("f"), arguments, {}, options);
  }

  Tensor floats(std::vector<int64_t> shape, mlir::Type element, std::vector<double> values) {
    Tensor t = Tensor::zeros(mlir::RankedTensorType::get(shape, element));
    t.f = std::move(values);
    return t;
  }
};

TEST_F(EvaluatorTest, RoundsEachOpToItsElementTypeOnRequest) {
  const std::string text = R"(func.func @f(%x: tensor<1xf32>, %y: tensor<1xf32>) -> tensor<1xf32> {
    %s = train.add %x, %y : tensor<1xf32>
    %d = train.sub %s, %x : tensor<1xf32>
    return %d : tensor<1xf32>
  })";
  mlir::Type f32 = mlir::Float32Type::get(&context);
  std::vector<Tensor> arguments{floats({1}, f32, {1}), floats({1}, f32, {1e-9})};
  EvaluatorOptions options;
  EXPECT_NEAR(run(text, arguments, options)->results[0].f[0], 1e-9, 1e-15);
  options.round = true;
  EXPECT_EQ(run(text, arguments, options)->results[0].f[0], 0);
}

// a b + c lies 2^-70 below a tie of f32: rounding to f64 first makes it the tie, which goes the other way.
TEST_F(EvaluatorTest, FmaRoundsOnce) {
  mlir::Type f32 = mlir::Float32Type::get(&context);
  float a = 0x1p-12f + 0x1p-35f, b = 0x1p-12f - 0x1p-35f, c = 1 + 0x1p-23f;
  EvaluatorOptions options;
  options.round = true;
  auto result = run(R"(func.func @f(%a: tensor<1xf32>, %b: tensor<1xf32>, %c: tensor<1xf32>) -> tensor<1xf32> {
    %r = train.fma %a, %b, %c : tensor<1xf32>
    return %r : tensor<1xf32>
  })",
                    {floats({1}, f32, {a}), floats({1}, f32, {b}), floats({1}, f32, {c})}, options);
  EXPECT_EQ(result->results[0].f[0], 1 + 0x1p-23);
  EXPECT_EQ(float(double(a) * b + c), 1 + 0x1p-22f);
}

TEST_F(EvaluatorTest, RoundsHalves) {
  EvaluatorOptions options;
  options.round = true;
  auto result = run(R"(func.func @f(%x: tensor<2xf32>) -> (tensor<2xbf16>, tensor<2xf16>) {
    %b = train.cast %x : tensor<2xf32> -> tensor<2xbf16>
    %h = train.cast %x : tensor<2xf32> -> tensor<2xf16>
    return %b, %h : tensor<2xbf16>, tensor<2xf16>
  })",
                    {floats({2}, mlir::Float32Type::get(&context), {1.01, 70000})}, options);
  EXPECT_THAT(result->results[0].f, ElementsAre(1.0078125, 70144));
  EXPECT_THAT(result->results[1].f, ElementsAre(1.009765625, INFINITY));
}

// 2^24 + 1 is not an f32 and 2^54 + 2^30 + 1 not an f64; 1 + 2^-8 + 2^-30 is a tie of bf16 once it is an f32.
TEST_F(EvaluatorTest, CastsRoundAsKernelsDo) {
  EvaluatorOptions options;
  options.round = true;
  Tensor integers = Tensor::zeros(mlir::RankedTensorType::get({2}, mlir::IntegerType::get(&context, 64)));
  integers.i = {(1 << 24) + 1, (int64_t(1) << 54) + (1 << 30) + 1};
  Tensor doubles = floats({1}, mlir::Float64Type::get(&context), {1 + 0x1p-8 + 0x1p-30});
  auto result = run(R"(func.func @f(%i: tensor<2xi64>, %x: tensor<1xf64>) -> (tensor<2xf32>, tensor<1xbf16>) {
    %f = train.cast %i : tensor<2xi64> -> tensor<2xf32>
    %b = train.cast %x : tensor<1xf64> -> tensor<1xbf16>
    return %f, %b : tensor<2xf32>, tensor<1xbf16>
  })",
                    {integers, doubles}, options);
  EXPECT_THAT(result->results[0].f, ElementsAre(1 << 24, 0x1p54 + 0x1p31));
  EXPECT_THAT(result->results[1].f, ElementsAre(1));
}

TEST_F(EvaluatorTest, SingleElementsAreThoseOfTensors) {
  auto module = mlir::parseSourceString<mlir::ModuleOp>(R"(func.func @f(%a: tensor<3xi8>, %b: tensor<3xi8>) {
    %s = train.add %a, %b : tensor<3xi8>
    %f = train.cast %s : tensor<3xi8> -> tensor<3xbf16>
    %g = train.reshape %s : tensor<3xi8> -> tensor<1x3xi8>
    return
  })",
                                                        &context);
  auto& ops = module->lookupSymbol("f")->getRegion(0).front().getOperations();
  auto op = ops.begin();
  EXPECT_EQ(evaluateElement(&*op++, {Element{0, 100}, Element{0, 30}})->i, -126);
  EXPECT_EQ(evaluateElement(&*op++, {Element{0, -126}})->f, -126);
  EXPECT_FALSE(evaluateElement(&*op, {Element{0, 1}}));
}

// Attributes of every element type survive the way to a tensor and back, and equal elements become a splat.
TEST_F(EvaluatorTest, AttributesRoundTrip) {
  for (const char* text :
       {"dense<[1.5, -0.0, 0x7FC00000]> : tensor<3xf32>", "dense<[1.5, 2.5]> : tensor<2xf64>",
        "dense<[1.5, -2.0]> : tensor<2xbf16>", "dense<[1.5, -2.0]> : tensor<2xf16>",
        "dense<[true, false, true]> : tensor<3xi1>", "dense<[-1, 127]> : tensor<2xi8>",
        "dense<[255, 1]> : tensor<2xui8>", "dense<[-3, 4]> : tensor<2xi16>", "dense<[-3, 4]> : tensor<2xi32>",
        "dense<[-3, 4]> : tensor<2xi64>", "dense<2.5> : tensor<2x2xf32>", "dense<7> : tensor<3xi64>",
        "dense<true> : tensor<2xi1>", "dense<> : tensor<0xf32>"}) {
    auto attribute = mlir::cast<mlir::ElementsAttr>(mlir::parseAttribute(text, &context));
    auto tensor = toTensor(attribute);
    ASSERT_TRUE(mlir::succeeded(tensor)) << text;
    EXPECT_EQ(mlir::Attribute(toAttribute(*tensor)), mlir::Attribute(attribute)) << text;
  }
  EXPECT_TRUE(toAttribute(floats({3}, mlir::Float32Type::get(&context), {2, 2, 2})).isSplat());
  // Zeros of both signs are not equal.
  EXPECT_FALSE(toAttribute(floats({2}, mlir::Float32Type::get(&context), {0, -0.0})).isSplat());
}

// The known answers that come with the generator (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_THAT(philox(0, 0, 0, 0), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(philox(~0ull, ~0ull, ~0u, ~0u), ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x13198a2e, 0x03707344),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

// Two ranks of three rows draw the mask that one rank draws for six; another step draws another.
TEST_F(EvaluatorTest, DropoutMasksDependOnTheGlobalElement) {
  auto text = [](int rows) {
    std::string type = "tensor<" + std::to_string(rows) + "x50xf64>";
    return "func.func @f(%x: " + type + ") -> " + type + " {\n%r = train.dropout %x ratio 5.0e-1 node 3 : " + type +
           "\nreturn %r : " + type + "\n}";
  };
  mlir::Type f64 = mlir::Float64Type::get(&context);
  auto mask = [&](int64_t rows, int64_t rank, int64_t step) {
    EvaluatorOptions options;
    options.seed = 0x123456789abcdef;
    options.rank = rank;
    options.step = step;
    return run(text(int(rows)), {floats({rows, 50}, f64, std::vector<double>(rows * 50, 1))}, options)->results[0].f;
  };
  std::vector<double> whole = mask(6, 0, 1), halves = mask(3, 0, 1), second = mask(3, 1, 1);
  halves.insert(halves.end(), second.begin(), second.end());
  EXPECT_EQ(whole, halves);
  EXPECT_NE(whole, mask(6, 0, 2));
  double kept = 0;
  for (double v : whole) kept += v / 2;
  EXPECT_NEAR(kept, 150, 40);
}

TEST_F(EvaluatorTest, ErrorsNameTheOp) {
  Tensor index = Tensor::zeros(mlir::RankedTensorType::get({1}, mlir::IntegerType::get(&context, 64)));
  index.i = {4};
  EXPECT_TRUE(mlir::failed(run(R"(func.func @f(%i: tensor<1xi64>) -> tensor<1xf32> {
    %d = train.constant dense<0.0> : tensor<4xf32>
    %r = train.gather %d[%i] axis 0 : tensor<4xf32>, tensor<1xi64> -> tensor<1xf32>
    return %r : tensor<1xf32>
  })",
                               {index})));
  EXPECT_THAT(errors, HasSubstr("'train.gather' op index 4 lies outside a dimension of 4"));

  errors.clear();
  EXPECT_TRUE(mlir::failed(run("func.func @f(%i: tensor<2xi64>) {\nreturn\n}", {index})));
  EXPECT_THAT(errors, HasSubstr("argument 0 takes 'tensor<2xi64>', and has 'tensor<1xi64>'"));
}

}  // namespace
