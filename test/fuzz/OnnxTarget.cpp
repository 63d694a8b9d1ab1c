#include <cstdlib>
#include <iterator>

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
            static constexpr const char* kLosses[] = {"cross_entropy(logits)",
                                                      "cross_entropy(logits, label_smoothing=0.1)", "mse(logits)",
                                                      "bce_with_logits(logits)", "kl_div(logits)"};
            if (random.oneIn(8)) options.loss = kLosses[random.below(std::size(kLosses))];
            // A survey goes on after errors. What it calls trainable is what an import takes.
            frontend::Survey survey;
            const bool surveyed = random.oneIn(2);
            mlir::OwningOpRef<mlir::ModuleOp> module = surveyed ? frontend::surveyOnnx(context, path, options, survey)
                                                                : frontend::importOnnx(context, path, options);
            if (surveyed && survey.trainable() != bool(module)) std::abort();
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
