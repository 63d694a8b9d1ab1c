// From an ONNX model to a module of the `train` dialect.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace sheaf::frontend {

// What is made of the graph. kEvaluation: its outputs and the loss, with dropout off and running statistics; kOutputs:
// the same without a loss.
enum class Form { kTraining, kEvaluation, kOutputs };

struct ImportOptions {
  Form form = Form::kTraining;
  int64_t ranks = 1;  // ranks that share the batch
  int64_t batch = 0;  // global batch; binds the leading symbolic dimension of the data inputs (0: not given)
  std::vector<std::pair<std::string, int64_t>> bind;  // other symbolic dimensions, by name
  // The output to minimise: "" for the only scalar float output, an output's name, or "cross_entropy(LOGITS)", which
  // adds an int64 input `labels` with the leading dimensions of the output LOGITS.
  std::string loss;
  std::vector<std::string> train, freeze;  // regular expressions over parameter names; freeze wins
  std::string optimizer;                   // "" if not given: then a model with training_info uses its own
};

// The forward step of one rank: `train.parameter` symbols and a `func.func @step` that ends in `train.loss`. Shapes are
// one rank's (batch / ranks rows), all static; nothing of ONNX is left; weights are named, never read. Module
// attributes: `train.ranks` and `train.batch` (i64), `train.decisions` (strings), `train.model` (the path as given). A
// model with its own optimizer (training_info) also yields `train.optimizer` symbols, named by an attribute
// `train.optimizer` of the parameters they update. On failure the result is null and one error has been emitted.
//
// In the forms kEvaluation and kOutputs @step has a `train.output` for each output of the graph, kEvaluation also the
// loss. Inputs may have any rank: one of rank 0, or whose first dimension is fixed and not the batch's, is the same for
// all rows (argument attribute `train.whole`). A last argument, `train.row_mask`, is 1 for each row that counts.
mlir::OwningOpRef<mlir::ModuleOp> importOnnx(mlir::MLIRContext& context, llvm::StringRef path,
                                             const ImportOptions& options);

// One supported operator; `since` and `last` are opset versions (last 0: still current).
struct SupportedOperator {
  std::string domain, name;
  int64_t since, last;
};
std::vector<SupportedOperator> supportedOperators();

}  // namespace sheaf::frontend
