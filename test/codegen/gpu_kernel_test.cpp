// GPU kernels: every mapping of rows to threads, run by emulated thread blocks, and the PTX that comes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/cuda/CudaKernels.h"
#include "codegen/cuda/GpuRowKernel.h"
#include "codegen/cuda/PtxCompiler.h"
#include "llvm/Target/TargetMachine.h"
#include "test/codegen/KernelRunner.h"
#include "test/codegen/Programs.h"

using namespace sheaf;
using namespace sheaf::test;
using testing::HasSubstr;
using testing::Not;

namespace {

std::string withElement(std::string text, const std::string& element) {
  for (size_t at = 0; (at = text.find("xf32", at)) != std::string::npos; ++at) text.replace(at, 4, "x" + element);
  return text;
}

// The PTX of all kernels of a program, as emitted for sm_`architecture`.
std::string ptxOf(Program& program, int architecture) {
  std::string error, result;
  auto machine = codegen::createGpuTargetMachine(architecture, error);
  EXPECT_TRUE(succeeded(machine)) << error;
  std::unique_ptr<mlir::MLIRContext> context = codegen::createGpuContext();
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(mlir::UnknownLoc::get(context.get()));
  mlir::OpBuilder builder = mlir::OpBuilder::atBlockEnd(module->getBody());
  auto kernels = mlir::gpu::GPUModuleOp::create(builder, module->getLoc(), "kernels");
  auto distinct = codegen::distinctPrograms(program.fusions);
  for (auto [program, symbol] : llvm::zip(distinct->programs, distinct->symbols))
    codegen::emitGpuRowKernel(program, codegen::chooseMapping(program, 0), {}, symbol, kernels);
  auto ptx = codegen::compileToPtx(kernels, **machine, error);
  EXPECT_TRUE(succeeded(ptx)) << error;
  return succeeded(ptx) ? *ptx : "";
}

// What the code of a program's one kernel does with its operands, the same on both targets.
codegen::KernelOperands operandsOf(Program& program) {
  auto distinct = codegen::distinctPrograms(program.fusions);
  EXPECT_EQ(distinct->programs.size(), 1u);
  std::unique_ptr<mlir::MLIRContext> context = codegen::createGpuContext();
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(mlir::UnknownLoc::get(context.get()));
  mlir::OpBuilder builder = mlir::OpBuilder::atBlockEnd(module->getBody());
  auto kernels = mlir::gpu::GPUModuleOp::create(builder, module->getLoc(), "kernels");
  const codegen::RowProgram& one = distinct->programs.front();
  const codegen::KernelOperands gpu =
      codegen::emitGpuRowKernel(one, codegen::chooseMapping(one, 0), {}, "kernel", kernels);
  const codegen::KernelOperands& cpu = program.image.operands.begin()->second;
  EXPECT_EQ(cpu.access, gpu.access);
  EXPECT_EQ(cpu.inPlace, gpu.inPlace);
  return cpu;
}

// A fusion's operands are in order of first use: the bias before x, the factor of weight decay before the parameters.
TEST(KernelOperands, AreWhatTheCodeLoadsAndStores) {
  using List = llvm::SmallVector<int64_t>;
  constexpr int64_t kRead = 1, kWrite = 2;
  for (int64_t columns : {33, 768, 5000}) {
    SCOPED_TRACE("columns " + std::to_string(columns));
    Program bias(withShape(kBiasGelu, 64, columns), kPipeline);
    EXPECT_EQ(operandsOf(bias).access, (List{kRead, kRead, kWrite}));
    EXPECT_EQ(operandsOf(bias).inPlace, (List{0, 1, 1}));
    // Its sums of columns are cleared before they are added to, and lie where nothing else does.
    Program sums(withShape(kGeluBackward, 64, columns), kPipeline);
    EXPECT_EQ(operandsOf(sums).access, (List{kRead, kRead, kWrite, kWrite}));
    EXPECT_EQ(operandsOf(sums).inPlace, (List{1, 1, 1, 0}));
  }
  Program update(withShape(kAdamW, 37, 1000), kPipeline);
  EXPECT_EQ(operandsOf(update).access, (List{kRead, kRead, kRead, kRead, kRead, kRead, kRead, kWrite, kWrite, kWrite}));
  EXPECT_EQ(operandsOf(update).inPlace, (List{0, 1, 1, 1, 1, 0, 0, 1, 1, 1}));
}

// Rows within a part of a warp, a warp, several warps, and in rounds; with whole vectors, and without.
TEST(GpuKernel, RowsOfEveryLength) {
  for (int64_t columns :
       {1, 2, 3, 4, 5, 8, 12, 31, 32, 64, 65, 127, 128, 129, 500, 768, 1000, 1023, 2048, 2050, 4097, 5000}) {
    SCOPED_TRACE("columns " + std::to_string(columns));
    int64_t rows = columns > 1000 ? 3 : 21;
    for (const char* text : {kSoftmax, kLayerNormForward}) {
      Program program(withShape(text, rows, columns), kPipeline);
      checkKernels(program, program.randomArguments(columns), 1e-5);
    }
    Program sums(withShape(kLayerNormBackward, rows, columns), kPipeline);
    checkKernels(sums, sums.randomArguments(columns), 1e-4);
  }
}

TEST(GpuKernel, ElementsOfEveryType) {
  for (const char* element : {"bf16", "f16", "f64"})
    for (int64_t columns : {1, 7, 40, 770, 3001}) {
      SCOPED_TRACE(std::string(element) + ", columns " + std::to_string(columns));
      double tolerance = std::string(element) == "bf16" ? 4e-2 : std::string(element) == "f16" ? 5e-3 : 1e-11;
      Program normalised(withElement(withShape(kLayerNormForward, 5, columns), element), kPipeline);
      checkKernels(normalised, normalised.randomArguments(3), tolerance);
      Program flat(withElement(withShape(kSwiglu, 5, columns), element), kPipeline);
      checkKernels(flat, flat.randomArguments(4), tolerance);
    }
}

TEST(GpuKernel, IntegersAndBooleans) {
  for (int64_t columns : {5, 64, 1001}) {
    Program program(withShape(R"(
      func.func @f(%x: tensor<@Rx@Cxi64>, %y: tensor<@Rx@Cxi64>, %m: tensor<@Rx@Cxi1>, %s: tensor<@Rx@Cxi32>)
          -> (tensor<@Rx@Cxi1>, tensor<@Rx@Cxi64>, tensor<@Rx1xi64>, tensor<@Rx1xi1>, tensor<@Rx@Cxi32>) {
        %c = train.compare lt %x, %y : tensor<@Rx@Cxi64>
        %b = train.and %c, %m : tensor<@Rx@Cxi1>
        %one = train.constant dense<1> : tensor<@Rx@Cxi64>
        %n = train.max %y, %one : tensor<@Rx@Cxi64>
        %q = train.div %x, %n : tensor<@Rx@Cxi64>
        %z = train.select %b, %q, %x : tensor<@Rx@Cxi1>, tensor<@Rx@Cxi64>
        %r = train.reduce max %z [1] : tensor<@Rx@Cxi64> -> tensor<@Rx1xi64>
        %a = train.reduce max %b [1] : tensor<@Rx@Cxi1> -> tensor<@Rx1xi1>
        %i = train.iota 1 : tensor<@Rx@Cxi32>
        %t = train.add %s, %i : tensor<@Rx@Cxi32>
        return %b, %z, %r, %a, %t
            : tensor<@Rx@Cxi1>, tensor<@Rx@Cxi64>, tensor<@Rx1xi64>, tensor<@Rx1xi1>, tensor<@Rx@Cxi32>
      })",
                              37, columns),
                    kPipeline);
    checkKernels(program, program.randomArguments(5), 0);
  }
}

// Bias gradients: many rows to a block, columns cut into tiles.
TEST(GpuKernel, ColumnSumsOfManyRows) {
  for (auto [rows, columns] : {std::pair<int64_t, int64_t>{1, 300}, {300, 3}, {200, 129}, {70, 1100}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
    Program program(withShape(kGeluBackward, rows, columns), kPipeline);
    checkKernels(program, program.randomArguments(6), 2e-5);
    Program both(withShape(kLayerNormBackward, rows, columns), kPipeline);
    checkKernels(both, both.randomArguments(6), 1e-4);
  }
}

// A row too long for registers, with sums of its columns: they are kept in memory.
TEST(GpuKernel, ColumnSumsOfLongRows) {
  Program program(withShape(kLayerNormBackward, 5, 30001), kPipeline);
  bool inRounds = false;
  for (size_t i = 0; i < program.fusions.size(); ++i)
    inRounds |= program.gpuMapping(i).rounds > 1 && program.fusions[i].getNumResults() > 1;
  EXPECT_TRUE(inRounds);
  checkKernels(program, program.randomArguments(8), 2e-4);
}

TEST(GpuKernel, VocabularyIsNotAWholeNumberOfVectors) {
  Program program(withShape(kCrossEntropyForward, 3, 50257), kPipeline);
  auto arguments = program.randomArguments(9, 3.0, 40);
  checkKernels(program, arguments, 1e-5);
}

// Padded rows are moved in whole vectors, whatever their length: held in registers, in rounds, and cut into tiles.
TEST(GpuKernel, PaddedRowsMoveInVectors) {
  struct Case {
    const char* element;
    int64_t columns, lanes;
    double tolerance;
  };
  for (Case c : {Case{"f32", 263, 4, 1e-5},
                 {"f32", 1001, 4, 1e-5},
                 {"f32", 5001, 4, 1e-5},
                 {"bf16", 241, 8, 4e-2},
                 {"bf16", 5001, 8, 8e-2},
                 {"f64", 1001, 2, 1e-11}}) {
    SCOPED_TRACE(std::string(c.element) + ", columns " + std::to_string(c.columns));
    for (const char* text : {kLossBetweenProducts, kActivationBetweenProducts}) {
      auto program = checkPadding(withElement(withShape(text, 5, c.columns), c.element), c.tolerance);
      for (size_t i = 0; i < program->fusions.size(); ++i)
        if (program->fusions[i].getPitches()) {
          EXPECT_EQ(program->gpuMapping(i).lanes, c.lanes);
        }
    }
  }
}

TEST(GpuKernel, PaddedRowsNextToDenseOnes) {
  for (int64_t columns : {1001, 5001}) {
    auto program = checkPadding(withShape(kNormBetweenProducts, 5, columns), 2e-4);
    EXPECT_EQ(program->gpuMapping(0).lanes, 1);
  }
}

TEST(GpuKernel, PaddedVocabulary) {
  auto program = checkPadding(withShape(kLossBetweenProducts, 3, 50257), 1e-5);
  EXPECT_GT(program->gpuMapping(0).rounds, 1);
  std::string ptx = ptxOf(*program, 90);
  EXPECT_THAT(ptx, HasSubstr("ld.global.v4.b32"));
  EXPECT_THAT(ptx, HasSubstr("st.global.v4.b32"));
}

// A result that takes the place of a row's scalar, which threads of all columns read.
TEST(GpuKernel, RowScalarsInPlace) {
  for (int64_t columns : {3, 40, 500, 2000}) {
    Program program(withShape(R"(
      func.func @f(%x: tensor<@Rx@Cxf32>, %s: tensor<@Rx1xf32>) -> (tensor<@Rx@Cxf32>, tensor<@Rx1xf32>) {
        %t = train.add %s, %s : tensor<@Rx1xf32>
        %b = train.broadcast %t : tensor<@Rx1xf32> -> tensor<@Rx@Cxf32>
        %y = train.mul %x, %b : tensor<@Rx@Cxf32>
        return %y, %t : tensor<@Rx@Cxf32>, tensor<@Rx1xf32>
      })",
                              9, columns),
                    kPipeline);
    ASSERT_EQ(program.fusions.size(), 1u);
    checkKernels(program, program.randomArguments(10), 1e-6);
  }
}

TEST(GpuKernel, ArithmeticStaysWhatItIs) {
  Program program(R"(
    func.func @f(%x: tensor<4096xf32>, %y: tensor<4096xf32>, %z: tensor<4096xf32>) -> tensor<4096xf32> {
      %a = train.mul %x, %y : tensor<4096xf32>
      %b = train.add %a, %z : tensor<4096xf32>
      %c = train.div %b, %y : tensor<4096xf32>
      %d = train.sqrt %c : tensor<4096xf32>
      return %d : tensor<4096xf32>
    })",
                  kPipeline);
  std::string ptx = ptxOf(program, 90);
  EXPECT_THAT(ptx, HasSubstr(".target sm_90"));
  EXPECT_THAT(ptx, HasSubstr("div.rn.f32"));
  EXPECT_THAT(ptx, HasSubstr("sqrt.rn.f32"));
  EXPECT_THAT(ptx, HasSubstr("ld.global.v4.b32"));
  EXPECT_THAT(ptx, Not(HasSubstr("fma")));
  EXPECT_THAT(ptx, Not(HasSubstr("ftz")));
  EXPECT_THAT(ptx, Not(HasSubstr("approx")));
  EXPECT_THAT(ptx, HasSubstr(".maxntid 256"));
}

TEST(GpuKernel, HalvesMoveInVectorsAndAreRoundedByOneInstruction) {
  Program program(withElement(withShape(kSwiglu, 8, 512), "bf16"), kPipeline);
  std::string ptx = ptxOf(program, 90);
  EXPECT_THAT(ptx, HasSubstr("ld.global.v4.b32"));
  EXPECT_THAT(ptx, HasSubstr("cvt.rn.bf16"));
}

// What no result can overwrite is read past the coherent cache.
TEST(GpuKernel, OperandsThatStayAreReadAsSuch) {
  Program program(withShape(kBiasGelu, 64, 768), kPipeline);
  std::string ptx = ptxOf(program, 90);
  EXPECT_THAT(ptx, HasSubstr("ld.global.v4.b32"));
  EXPECT_THAT(ptx, HasSubstr("ld.global.nc.v4.b32"));
}

TEST(GpuKernel, ImagesDoNotDependOnThreads) {
  std::string error;
  if (failed(codegen::findToolkit(error))) GTEST_SKIP() << error;
  Program program(withShape(kLayerNormBackward, 64, 768), kPipeline);
  auto one = codegen::compileCudaKernels(program.fusions, {90, 1});
  auto two = codegen::compileCudaKernels(program.fusions, {90, 2});
  ASSERT_TRUE(succeeded(one) && succeeded(two));
  EXPECT_TRUE(one->code == two->code);
  for (const codegen::CudaKernel& kernel : one->kernels) {
    EXPECT_GT(kernel.usage.registers, 0) << kernel.symbol;
    EXPECT_EQ(kernel.usage.spillBytes, 0) << kernel.symbol;
  }
}

TEST(GpuKernel, ArchitecturesThatAreUnknownOrTooOld) {
  std::string error;
  EXPECT_TRUE(failed(codegen::createGpuTargetMachine(70, error)));
  EXPECT_THAT(error, HasSubstr("at least sm_80"));
  EXPECT_TRUE(failed(codegen::createGpuTargetMachine(123, error)));
  EXPECT_THAT(error, HasSubstr("unknown GPU 'sm_123'"));
}

TEST(Toolkit, ReadsWhatPtxasSays) {
  auto usage = codegen::parseUsage(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'fusion_0' for 'sm_90'\n"
      "ptxas info    : Function properties for fusion_0\n"
      "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 42 registers, used 1 barriers, 16 bytes cumulative stack size, 256 bytes smem\n"
      "ptxas info    : Compiling entry function 'fusion_1' for 'sm_90'\n"
      "ptxas info    : Function properties for fusion_1\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 10 registers, used 0 barriers\n");
  ASSERT_EQ(usage.size(), 2u);
  EXPECT_EQ(usage[0].symbol, "fusion_0");
  EXPECT_EQ(usage[0].registers, 42);
  EXPECT_EQ(usage[0].stackBytes, 16);
  EXPECT_EQ(usage[0].spillBytes, 20);
  EXPECT_EQ(usage[0].sharedBytes, 256);
  EXPECT_EQ(usage[1].symbol, "fusion_1");
  EXPECT_EQ(usage[1].registers, 10);
  EXPECT_EQ(usage[1].spillBytes, 0);
}

}  // namespace
