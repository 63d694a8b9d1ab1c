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

// An input whose values are known when the graph is compiled: integers that decide shapes.
struct KnownInput {
  std::string name;
  std::vector<int64_t> shape, values;  // row-major
};

struct ImportOptions {
  int64_t ranks = 1;  // ranks that share the batch
  int64_t batch = 0;  // global batch; binds the leading symbolic dimension of the data inputs (0: not given)
  std::vector<std::pair<std::string, int64_t>> bind;  // other symbolic dimensions, by name
  std::vector<KnownInput> constants;                  // integer or boolean inputs that are not data
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
mlir::OwningOpRef<mlir::ModuleOp> importOnnx(mlir::MLIRContext& context, llvm::StringRef path,
                                             const ImportOptions& options);

// One supported operator; `since` and `last` are opset versions (last 0: still current).
struct SupportedOperator {
  std::string domain, name;
  int64_t since, last;
};
std::vector<SupportedOperator> supportedOperators();

}  // namespace sheaf::frontend
