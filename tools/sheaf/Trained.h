// From a model's file to its training step: the phases `import` and `train`, which every tool that compiles begins
// with.
#pragma once

#include "frontend/onnx/Import.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "passes/Pipeline.h"
#include "runtime/base/Status.h"
#include "runtime/base/Text.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::tool {

struct TrainedOptions {
  std::string model;  // path
  frontend::ImportOptions import;
  PipelineOptions pipeline;
  std::string optimizer;
  plan::Schedule schedule;  // of the learning rate
  plan::Training::OnNan onNan = plan::Training::STOP;
  plan::Training::ReduceOrder reduceOrder = plan::Training::RANK;
  double clipNorm = 0;
  int64_t seed = 0;
};

// Reads the value of an option that takes the words of one of the train dialect's enumerations.
template <typename Enum>
Status parseEnum(const std::string& option, const std::string& text, Enum& value) {
  const std::optional<Enum> known = train::symbolizeEnum<Enum>(text);
  if (!known) return Status::error(cat(option, " ", text, ": expected one of ", listText(train::enumWords<Enum>())));
  value = *known;
  return {};
}

// Reads DIM=K.
Status addBinding(const std::string& text, frontend::ImportOptions& options);

// A context with our dialects, for one compilation.
std::unique_ptr<mlir::MLIRContext> makeContext();

// The module after the phase `train`, or after `import` only; null: an error has been printed.
mlir::OwningOpRef<mlir::ModuleOp> importModel(mlir::MLIRContext& context, const TrainedOptions& options,
                                              bool importOnly = false);

}  // namespace sheaf::tool
