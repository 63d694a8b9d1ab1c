// The losses that `--loss 'KIND(OUTPUT, KEY=VALUE, ...)'` adds to a model, by PyTorch's definitions with the reduction
// mean. One table says of each what it takes, what it computes and how it is built; the command's help, errors and
// docs/onnx.md follow from it.
#pragma once

#include <optional>
#include <string>

#include "frontend/onnx/importer/Emitter.h"
#include "ir/Train/Place.h"
#include "llvm/ADT/StringMap.h"

namespace sheaf::frontend {

class Importer;
struct LossKind;

// A --loss that names a kind.
struct LossRequest {
  const LossKind* kind = nullptr;
  std::string output, target;  // of the graph; the input that is added
  llvm::StringMap<std::string> settings;

  // As it was asked for, with the defaults left out.
  std::string text() const;
};

// True of a loss's name without an operand, as in "mse".
bool isLossFunction(llvm::StringRef name);
// Reads KIND(OUTPUT, KEY=VALUE, ...). Nothing if the text has no such form; failure after an error.
mlir::FailureOr<std::optional<LossRequest>> parseLoss(llvm::StringRef text,
                                                      llvm::function_ref<mlir::InFlightDiagnostic()> error);

// Builds the mean loss, a scalar, of an output that has the batch's `rows` at `place`; absent after an error.
// `addTarget` declares the input to compare it with, given its type, whose first dimension is the rows.
Tensor buildLoss(Importer& importer, const LossRequest& request, const Tensor& output, int64_t rows,
                 std::optional<train::Place> place, llvm::function_ref<mlir::Value(mlir::RankedTensorType)> addTarget);

// What the operators of losses share with them (OpsLoss.cpp).

// Losses [R, 1] of logits [R, C] and labels [R, 1]; 0 where a label is ignored.
Tensor crossEntropyRows(Emitter& e, const Tensor& logits, const Tensor& labels, std::optional<int64_t> ignore);
// The weight [R, 1] of each row's loss: that of its label, 0 where it is ignored. Absent where all weigh 1; then `all`.
struct RowWeights {
  Tensor weight;
  bool all = false;
};
RowWeights rowWeights(Emitter& e, const Tensor& labels, const Tensor& classWeights, std::optional<int64_t> ignore,
                      mlir::Type element);
// The sum over the sum of the weights, of losses [R, 1] that were multiplied by them; a scalar.
Tensor meanRows(Emitter& e, const Tensor& weighted, const RowWeights& weights);

}  // namespace sheaf::frontend
