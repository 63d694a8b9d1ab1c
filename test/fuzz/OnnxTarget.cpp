#include "frontend/onnx/Import.h"
#include "ir/Train/TrainDialect.h"
#include "ir/Zero/ZeroDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Pipeline.h"
#include "test/fuzz/Targets.h"

namespace sheaf::fuzz {

Target onnxTarget(const std::string& corpus) {
  auto seeds = std::make_shared<std::vector<Seed>>(readSeeds(corpus + "/onnx"));
  return {"onnx", 6, [=](Random& random) {
            const Seed& seed = (*seeds)[random.below(seeds->size())];
            std::string path = scratch(corpus + "/onnx", "model.onnx");
            writeWhole(path, random.oneIn(8) ? mutateBytes(seed.bytes, random) : mutateWire(seed.bytes, random));

            mlir::DialectRegistry registry;
            registry.insert<train::TrainDialect, zero::ZeroDialect, mlir::func::FuncDialect>();
            mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
            mlir::ScopedDiagnosticHandler quiet(&context, [](mlir::Diagnostic&) { return mlir::success(); });
            frontend::ImportOptions options;
            options.batch = 8;
            options.ranks = random.oneIn(2) ? 2 : 1;
            if (random.oneIn(8)) options.loss = "cross_entropy(logits)";
            mlir::OwningOpRef<mlir::ModuleOp> module = frontend::importOnnx(context, path, options);
            if (!module) return;
            PipelineOptions pipeline;
            pipeline.stage = static_cast<int64_t>(random.below(4));
            pipeline.clip = random.oneIn(4);
            mlir::PassManager passes(&context);
            addImportPasses(passes);
            addTrainPasses(passes, pipeline);
            addZeroPasses(passes, pipeline);
            (void)passes.run(*module);
          }};
}

}  // namespace sheaf::fuzz
