#include "tools/sheaf/ProfileKernels.h"

#include <string>
#include <vector>

#include "codegen/cpu/CpuKernels.h"
#include "ir/Train/FusionCost.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/train/Passes.h"
#include "tools/sheaf/Diagnostics.h"
#include "tools/sheaf/Trained.h"

namespace sheaf::tool {
namespace {

// @ stands for the shape, # for that of a row.
const char* const kPrograms[] = {
    // a residual and the layer norm of the sum
    R"(func.func @f(%x: tensor<@xf32>, %a: tensor<@xf32>, %g: tensor<#xf32>, %b: tensor<#xf32>) -> (tensor<@xf32>, tensor<@xf32>) {
  %s = train.add %x, %a : tensor<@xf32>
  %y = train.layer_norm %s, %g, %b epsilon 1.0e-5 : (tensor<@xf32>, tensor<#xf32>, tensor<#xf32>) -> tensor<@xf32>
  return %s, %y : tensor<@xf32>, tensor<@xf32>
})",
    // a sum
    R"(func.func @f(%x: tensor<@xf32>, %y: tensor<@xf32>) -> tensor<@xf32> {
  %s = train.add %x, %y : tensor<@xf32>
  return %s : tensor<@xf32>
})",
    // GELU
    R"(func.func @f(%x: tensor<@xf32>) -> tensor<@xf32> {
  %y = train.gelu %x {approximate} : tensor<@xf32>
  return %y : tensor<@xf32>
})",
    // a gated unit
    R"(func.func @f(%gate: tensor<@xf32>, %up: tensor<@xf32>) -> tensor<@xf32> {
  %s = train.sigmoid %gate : tensor<@xf32>
  %silu = train.mul %gate, %s : tensor<@xf32>
  %y = train.mul %silu, %up : tensor<@xf32>
  return %y : tensor<@xf32>
})",
    // an optimizer's update, in place
    R"(func.func @f(%p: tensor<@xf32>, %m: tensor<@xf32>, %v: tensor<@xf32>, %g: tensor<@xf32>) -> (tensor<@xf32>, tensor<@xf32>, tensor<@xf32>) {
  %b1 = train.constant dense<0.9> : tensor<@xf32>
  %c1 = train.constant dense<0.1> : tensor<@xf32>
  %epsilon = train.constant dense<1.0e-8> : tensor<@xf32>
  %cg = train.mul %g, %c1 : tensor<@xf32>
  %m1 = train.fma %m, %b1, %cg : tensor<@xf32>
  %gg = train.mul %g, %cg : tensor<@xf32>
  %v1 = train.fma %v, %b1, %gg : tensor<@xf32>
  %s = train.sqrt %v1 : tensor<@xf32>
  %q = train.add %s, %epsilon : tensor<@xf32>
  %step = train.div %m1, %q : tensor<@xf32>
  %p1 = train.sub %p, %step : tensor<@xf32>
  return %p1, %m1, %v1 : tensor<@xf32>, tensor<@xf32>, tensor<@xf32>
})"};

constexpr struct { int64_t rows, columns; } kShapes[] = {{16, 128}, {64, 384}, {512, 384}, {1024, 1536}, {4096, 1536}};

std::string withShape(std::string text, int64_t rows, int64_t columns) {
  const std::string row = std::to_string(columns), shape = std::to_string(rows) + "x" + row;
  for (auto [mark, value] : {std::pair{'@', shape}, std::pair{'#', row}})
    for (size_t at = 0; (at = text.find(std::string("tensor<") + mark, at)) != std::string::npos;)
      text.replace(at + 7, 1, value);
  return text;
}

uint64_t bytesOf(mlir::Type type) {
  auto tensor = mlir::cast<mlir::RankedTensorType>(type);
  return static_cast<uint64_t>(tensor.getNumElements()) * tensor.getElementTypeBitWidth() / 8;
}

// Results lie where the first operands of their type that no other result took do, if the fusion reads these at the
// index it writes.
schedule::SampleKernel sampleOf(train::FusionOp fusion, int kernel, int size, bool inPlace) {
  schedule::SampleKernel sample{kernel, size, {}, {}};
  sample.access.assign(fusion->getNumOperands(), plan::READ);
  sample.placeOf.assign(fusion->getNumOperands(), -1);
  std::vector<int64_t> free(fusion.getElementwise().begin(), fusion.getElementwise().end());
  for (mlir::Type type : fusion.getResultTypes()) {
    auto at = std::find_if(free.begin(), free.end(),
                           [&](int64_t i) { return inPlace && fusion.getOperands()[i].getType() == type; });
    sample.access.push_back(plan::WRITE);
    sample.placeOf.push_back(at == free.end() ? -1 : static_cast<int>(*at));
    if (at != free.end()) free.erase(at);
  }
  return sample;
}

}  // namespace

bool compileSampleKernels(schedule::MeasureOptions& options) {
  std::unique_ptr<mlir::MLIRContext> context = makeContext();
  DiagnosticPrinter diagnostics(*context);
  std::vector<mlir::OwningOpRef<mlir::ModuleOp>> modules;
  std::vector<train::FusionOp> fusions;
  for (const char* program : kPrograms) {
    int size = 0;
    for (auto [rows, columns] : kShapes) {
      auto module = mlir::parseSourceString<mlir::ModuleOp>(withShape(program, rows, columns), context.get());
      mlir::PassManager passes(context.get());
      passes.addPass(train::createDecompose());
      passes.addPass(train::createAssignFusions());
      passes.addPass(train::createFuse());
      if (!module || mlir::failed(passes.run(*module))) return false;
      module->walk([&](train::FusionOp fusion) {
        fusions.push_back(fusion);
        const bool update = fusion->getNumResults() == 3;
        options.samples.push_back(sampleOf(fusion, static_cast<int>(fusions.size()) - 1, size, update));
      });
      modules.push_back(std::move(module));
      ++size;
    }
  }
  std::vector<std::string> symbols;
  mlir::FailureOr<codegen::CpuImage> image = codegen::compileFusions(fusions, symbols, {});
  if (mlir::failed(image)) return false;
  plan::KernelImage* out = options.kernels.add_images();
  out->set_target("cpu");
  out->set_cpu(image->cpu);
  for (const std::string& feature : image->features) out->add_features(feature);
  out->set_code(image->code);
  for (size_t i = 0; i < fusions.size(); ++i) {
    plan::Kernel* kernel = options.kernels.add_kernels();
    kernel->set_symbol(symbols[i]);
    out->add_entries()->set_offset(image->entries.at(symbols[i]));
    kernel->set_rows(fusions[i].getRows());
    kernel->set_block(fusions[i].getBlock());
    kernel->set_operations(train::fusionOperations(fusions[i]));
    for (mlir::Type type : fusions[i]->getOperandTypes()) kernel->add_operand_bytes(bytesOf(type));
    for (mlir::Type type : fusions[i]->getResultTypes()) kernel->add_operand_bytes(bytesOf(type));
  }
  return true;
}

}  // namespace sheaf::tool
