// Row programs end to end: decomposed, grouped, outlined, compiled, run and compared with the reference evaluator.
#include <gtest/gtest.h>

#include "test/codegen/KernelRunner.h"
#include "test/codegen/Programs.h"

using namespace sheaf;
using namespace sheaf::test;

namespace {

struct Shape {
  int64_t rows, columns;
};

void checkShapes(const char* text, llvm::ArrayRef<Shape> shapes, double tolerance, size_t kernels = 1) {
  for (Shape shape : shapes) {
    SCOPED_TRACE("rows " + std::to_string(shape.rows) + ", columns " + std::to_string(shape.columns));
    Program program(withShape(text, shape.rows, shape.columns), kPipeline);
    if (shape.columns > 1 && shape.rows > 1) {
      EXPECT_EQ(program.fusions.size(), kernels);
    }
    checkKernels(program, program.randomArguments(7, 1.0, std::max<int64_t>(1, std::min<int64_t>(shape.columns, 40))),
                 tolerance);
  }
}

const Shape kShapes[] = {{1, 1}, {5, 1}, {3, 3}, {7, 16}, {4, 17}, {130, 33}, {1, 100}, {67, 64}, {9, 200}};

TEST(Kernel, LayerNormForward) {
  checkShapes(kLayerNormForward, kShapes, 5e-6);
}
TEST(Kernel, LayerNormBackward) {
  checkShapes(kLayerNormBackward, {{5, 3}, {7, 16}, {4, 17}, {130, 33}, {67, 64}, {9, 200}}, 2e-5);
}
TEST(Kernel, BiasGelu) {
  checkShapes(kBiasGelu, kShapes, 1e-6);
  checkShapes(kBiasGeluErf, kShapes, 1e-6);
}
TEST(Kernel, GeluBackward) {
  checkShapes(kGeluBackward, {{5, 3}, {4, 17}, {130, 33}, {66, 200}}, 5e-6);
}
TEST(Kernel, CrossEntropy) {
  checkShapes(kCrossEntropyForward, {{5, 3}, {4, 17}, {130, 33}, {9, 200}, {3, 50257}}, 2e-6);
  checkShapes(kCrossEntropyBackward, {{5, 3}, {4, 17}, {130, 33}, {9, 200}, {3, 50257}}, 2e-6);
}
TEST(Kernel, Softmax) {
  checkShapes(kSoftmax, kShapes, 1e-6);
}
TEST(Kernel, AdamWIsFlat) {
  checkShapes(kSwiglu, {{1, 1}, {1, 31}, {3, 4097}, {5, 13}}, 1e-6);
  for (Shape shape : {Shape{1, 31}, Shape{37, 1000}}) {
    Program program(withShape(kAdamW, shape.rows, shape.columns), kPipeline);
    auto arguments = program.randomArguments(11, 0.1);
    for (double& x : arguments[3].f) x = std::abs(x);
    for (size_t i = 4; i < 7; ++i) arguments[i].f = {i == 5 ? 0.0009765625 : 0.5};
    checkKernels(program, arguments, 2e-5);
    EXPECT_EQ(program.fusions.size(), 1u);
    EXPECT_EQ(program.fusions[0].getElementwise().size(), 4u);
  }
}

TEST(Kernel, BroadcastsOfEveryOuterShape) {
  for (const char* small : {"2x3x4x5", "1x3x4x5", "2x1x4x5", "2x3x1x5", "1x1x4x5", "1x3x1x5", "2x1x1x5", "1x1x1x5",
                            "2x3x4x1", "1x3x4x1", "2x1x4x1", "1x3x1x1", "1x1x1x1"}) {
    SCOPED_TRACE(small);
    std::string type = std::string("tensor<") + small + "xf32>";
    bool same = std::string(small) == "2x3x4x5";
    std::string big = "tensor<2x3x4x5xf32>";
    Program program("func.func @f(%x: " + big + ", %b: " + type + ") -> (" + big + ", tensor<2x3x4x1xf32>) {\n" +
                        (same ? "" : "  %c = train.broadcast %b : " + type + " -> " + big + "\n") +
                        "  %y = train.mul %x, " + (same ? "%b" : "%c") + " : " + big +
                        "\n  %m = train.reduce max %y [3] : " + big +
                        " -> tensor<2x3x4x1xf32>\n  return %y, %m : " + big + ", tensor<2x3x4x1xf32>\n}",
                    kPipeline);
    EXPECT_EQ(program.fusions.size(), 1u);
    checkKernels(program, program.randomArguments(5), 1e-6);
  }
}

TEST(Kernel, ReductionsOfEveryKindAndAxes) {
  struct Case {
    const char *kind, *axes, *result;
  };
  const Case cases[] = {{"sum", "[2]", "6x5x1"},      {"max", "[2]", "6x5x1"},       {"min", "[2]", "6x5x1"},
                        {"prod", "[2]", "6x5x1"},     {"mean", "[2]", "6x5x1"},      {"sum", "[0, 1]", "1x1x70"},
                        {"mean", "[0, 1]", "1x1x70"}, {"max", "[0, 1]", "1x1x70"},   {"sum", "[0]", "1x5x70"},
                        {"sum", "[1]", "6x1x70"},     {"max", "[1]", "6x1x70"},      {"sum", "[0, 2]", "1x5x1"},
                        {"sum", "[1, 2]", "6x1x1"},   {"sum", "[0, 1, 2]", "1x1x1"}, {"max", "[0, 1, 2]", "1x1x1"},
                        {"mean", "[0, 2]", "1x5x1"}};
  for (const char* element : {"f32", "f64", "i64"})
    for (const Case& c : cases) {
      if (std::string(element) == "i64" && std::string(c.kind) == "mean") continue;
      SCOPED_TRACE(std::string(element) + " " + c.kind + " " + c.axes);
      std::string from = std::string("tensor<6x5x70x") + element + ">";
      std::string to = std::string("tensor<") + c.result + "x" + element + ">";
      Program program("func.func @f(%x: " + from + ") -> " + to + " {\n  %r = train.reduce " + c.kind + " %x " +
                          c.axes + " : " + from + " -> " + to + "\n  return %r : " + to + "\n}",
                      kPipeline);
      checkKernels(program, program.randomArguments(9), 1e-5);
    }
}

TEST(Kernel, WholeTensorsAreSummedInParallelRows) {
  Program program(R"(
    func.func @f(%x: tensor<65536xf32>) -> tensor<1xf32> {
      %s = train.mul %x, %x : tensor<65536xf32>
      %r = train.reduce sum %s [0] : tensor<65536xf32> -> tensor<1xf32>
      return %r : tensor<1xf32>
    })",
                  kPipeline);
  int64_t most = 0;
  for (train::FusionOp fusion : program.fusions) most = std::max<int64_t>(most, fusion.getRows());
  EXPECT_GE(most, 16);
  checkKernels(program, program.randomArguments(3), 1e-5);
}

TEST(Kernel, NarrowFloatsAreComputedInF32) {
  for (std::string element : {"bf16", "f16"}) {
    std::string text = kLayerNormBackward;
    for (size_t at; (at = text.find("xf32")) != std::string::npos;) text.replace(at, 4, "x" + element);
    Program program(withShape(text, 40, 70), kPipeline);
    checkKernels(program, program.randomArguments(13), element == "bf16" ? 3e-2 : 4e-3);
  }
}

// What train-set-precision makes of a kernel: it widens what it loads, computes in f32 and rounds what it stores, once.
// Values in between that were rounded too would be off by several times the tolerance.
TEST(Kernel, Bf16IsRoundedOnlyWhereItIsStored) {
  Program program(R"(
    func.func @f(%x: tensor<40x70xbf16>, %s: tensor<1x70xbf16>) -> (tensor<40x70xbf16>, tensor<40x1xf32>) {
      %wx = train.cast %x {train.group = 0 : i64} : tensor<40x70xbf16> -> tensor<40x70xf32>
      %ws = train.cast %s {train.group = 0 : i64} : tensor<1x70xbf16> -> tensor<1x70xf32>
      %b = train.broadcast %ws {train.group = 0 : i64} : tensor<1x70xf32> -> tensor<40x70xf32>
      %p = train.mul %wx, %b {train.group = 0 : i64} : tensor<40x70xf32>
      %e = train.exp %p {train.group = 0 : i64} : tensor<40x70xf32>
      %r = train.reduce sum %e [1] {train.group = 0 : i64} : tensor<40x70xf32> -> tensor<40x1xf32>
      %t = train.broadcast %r {train.group = 0 : i64} : tensor<40x1xf32> -> tensor<40x70xf32>
      %q = train.div %e, %t {train.group = 0 : i64} : tensor<40x70xf32>
      %d = train.sub %q, %e {train.group = 0 : i64} : tensor<40x70xf32>
      %h = train.cast %d {train.group = 0 : i64} : tensor<40x70xf32> -> tensor<40x70xbf16>
      return %h, %r : tensor<40x70xbf16>, tensor<40x1xf32>
    })",
                  "train-fuse");
  EXPECT_EQ(program.fusions.size(), 1u);
  checkKernels(program, program.randomArguments(14), 1.0 / 256);
}

// A normalisation over the batch: column sums are broadcast back, which takes a second kernel.
TEST(Kernel, ColumnSumsAreReadByAnotherKernel) {
  Program program(R"(
    func.func @f(%x: tensor<40x20xf32>) -> tensor<40x20xf32> {
      %m = train.reduce mean %x [0] : tensor<40x20xf32> -> tensor<1x20xf32>
      %b = train.broadcast %m : tensor<1x20xf32> -> tensor<40x20xf32>
      %d = train.sub %x, %b : tensor<40x20xf32>
      return %d : tensor<40x20xf32>
    })",
                  kPipeline);
  EXPECT_GE(program.fusions.size(), 2u);
  checkKernels(program, program.randomArguments(3), 1e-6);
}

// The same bits for AVX2 and AVX-512, and the same kernels for the same fusions.
TEST(Kernel, BitsDoNotDependOnTheTarget) {
  for (const char* text : {kLayerNormForward, kLayerNormBackward, kGeluBackward, kCrossEntropyForward}) {
    Program first(withShape(text, 40, 77), kPipeline, "x86-64-v3");
    Program second(withShape(text, 40, 77), kPipeline);
    auto arguments = first.randomArguments(17);
    auto a = first.run(arguments), b = second.run(arguments);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(toBytes(a[i]), toBytes(b[i])) << "result " << i;
    EXPECT_FALSE(llvm::is_contained(first.image.features, "avx512f"));
    EXPECT_TRUE(llvm::is_contained(first.image.features, "avx2"));
  }
}

TEST(Kernel, ImagesDoNotDependOnThreads) {
  Program program(R"(
    func.func @f(%x: tensor<4x8xf32>, %y: tensor<8x8xf32>) -> tensor<4x8xf32> {
      %a = train.exp %x : tensor<4x8xf32>
      %b = train.matmul %a, %y : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
      %c = train.softmax %b : tensor<4x8xf32>
      %d = train.matmul %c, %y : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
      %e = train.tanh %d : tensor<4x8xf32>
      return %e : tensor<4x8xf32>
    })",
                  kPipeline);
  std::vector<std::string> symbols;
  auto image = codegen::compileFusions(program.fusions, symbols, {hostCpu(), 3});
  ASSERT_TRUE(succeeded(image));
  EXPECT_EQ(image->code, program.image.code);
  EXPECT_EQ(image->entries, program.image.entries);
  EXPECT_EQ(symbols.size(), 3u);
}

TEST(Kernel, EqualFusionsShareAKernel) {
  Program program(R"(
    func.func @f(%x: tensor<4x8xf32>, %y: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
      %a = train.exp %x : tensor<4x8xf32>
      %b = train.matmul %a, %y : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
      %c = train.exp %b : tensor<4x8xf32>
      return %a, %c : tensor<4x8xf32>, tensor<4x8xf32>
    })",
                  kPipeline);
  EXPECT_EQ(program.fusions.size(), 2u);
  EXPECT_EQ(program.image.entries.size(), 1u);
  checkKernels(program, program.randomArguments(4, 0.5), 1e-6);
}

}  // namespace
