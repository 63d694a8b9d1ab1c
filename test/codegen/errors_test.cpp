// What cannot be compiled is said, at the place where it stands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/cpu/CpuKernels.h"
#include "codegen/cpu/FlatImage.h"
#include "codegen/cpu/KernelCompiler.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"

using namespace mlir;
using namespace sheaf;
using testing::HasSubstr;

namespace {

// The diagnostics of compiling the fusions of a function body on %x: tensor<4x8xf32> and %y: tensor<8x8xf32>.
std::string errorsOf(const std::string& fusion, const std::string& cpu = "host") {
  MLIRContext context(MLIRContext::Threading::DISABLED);
  context.loadDialect<train::TrainDialect, func::FuncDialect>();
  std::string errors;
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic& diagnostic) {
    llvm::raw_string_ostream(errors) << diagnostic << "\n";
    return success();
  });
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(
      "func.func @f(%x: tensor<4x8xf32>, %y: tensor<8x8xf32>) {\n" + fusion + "\n  return\n}", &context);
  if (!module) return "does not parse: " + errors;
  std::vector<train::FusionOp> fusions;
  module->walk([&](train::FusionOp op) { fusions.push_back(op); });
  std::vector<std::string> symbols;
  EXPECT_TRUE(failed(codegen::compileFusions(fusions, symbols, {cpu, 1})));
  return errors;
}

std::string fusion(const std::string& body, const std::string& result) {
  return "  %r = train.fusion(%x) rows 4 columns 8 block 1 {elementwise = array<i64>} : (tensor<4x8xf32>) -> " +
         result + " {\n  ^bb0(%a: tensor<4x8xf32>):\n" + body + "\n    train.yield %v : " + result + "\n  }";
}

TEST(Errors, OpsThatAreNoRowProgram) {
  EXPECT_THAT(
      errorsOf(fusion("%v = train.transpose %a [1, 0] : tensor<4x8xf32> -> tensor<8x4xf32>", "tensor<8x4xf32>")),
      HasSubstr("'train.transpose' op is not allowed in a fusion"));
  EXPECT_THAT(errorsOf(fusion("%w = train.reshape %a : tensor<4x8xf32> -> tensor<8x4xf32>\n"
                              "%v = train.reduce sum %w [1] : tensor<8x4xf32> -> tensor<8x1xf32>",
                              "tensor<8x1xf32>")),
              HasSubstr("last dimension"));
  EXPECT_THAT(errorsOf(fusion("%v = train.reduce max %a [0] : tensor<4x8xf32> -> tensor<1x8xf32>", "tensor<1x8xf32>")),
              HasSubstr("column reduction other than a sum"));
  EXPECT_THAT(errorsOf(fusion("%v = train.reduce mean %a [1] : tensor<4x8xf32> -> tensor<4x1xf32>", "tensor<4x1xf32>")),
              HasSubstr("train-decompose"));
}

TEST(Errors, ProcessorsThatAreUnknownOrTooOld) {
  std::string ok = fusion("%v = train.neg %a : tensor<4x8xf32>", "tensor<4x8xf32>");
  EXPECT_THAT(errorsOf(ok, "abacus"), HasSubstr("unknown CPU 'abacus'; use host"));
  EXPECT_THAT(errorsOf(ok, "native"), HasSubstr("unknown CPU 'native'; did you mean host?"));
  EXPECT_THAT(errorsOf(ok, "zen4"), HasSubstr("did you mean znver4?"));
  EXPECT_THAT(errorsOf(ok, "Haswel"), HasSubstr("did you mean haswell?"));
  EXPECT_THAT(errorsOf(ok, "x86-64"), HasSubstr("kernels need at least x86-64-v3"));
}

TEST(Errors, KernelsCallNothing) {
  std::unique_ptr<MLIRContext> context = codegen::createKernelContext();
  OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(R"(
    llvm.func @sinf(f32) -> f32
    llvm.func @kernel(%x: f32) -> f32 {
      %y = llvm.call @sinf(%x) : (f32) -> f32
      llvm.return %y : f32
    })",
                                                             context.get());
  std::string error;
  auto target = codegen::resolveCpuTarget("x86-64-v3", error);
  ASSERT_TRUE(succeeded(target)) << error;
  llvm::SmallVector<char, 0> object;
  ASSERT_TRUE(succeeded(codegen::compileKernels(*module, *codegen::createTargetMachine(*target), object, error)));
  EXPECT_TRUE(failed(codegen::flattenObject({object.data(), object.size()}, error)));
  EXPECT_THAT(error, HasSubstr("sinf"));
  EXPECT_TRUE(failed(codegen::flattenObject("no object", error)));
}

}  // namespace
