// The reference evaluator of the `train` dialect: what every op means, in plain loops. It folds constants, is the
// oracle of kernel tests and differentiates nothing but checks that what does is right.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/Region.h"

namespace sheaf::train {

// A value, row-major. Exactly one of the vectors holds the elements: `f` those of float types, `i` those of integers
// (sign- or zero-extended as the type says) and booleans (0 or 1).
struct Tensor {
  mlir::RankedTensorType type;
  std::vector<double> f;
  std::vector<int64_t> i;

  // Zeros of a type.
  static Tensor zeros(mlir::RankedTensorType type);
  bool isFloat() const { return mlir::isa<mlir::FloatType>(type.getElementType()); }
  int64_t size() const { return type.getNumElements(); }
};

// Conversions from and to attributes; an attribute of a kind that carries no elements (a resource) gives failure.
mlir::FailureOr<Tensor> toTensor(mlir::ElementsAttr attribute);
mlir::DenseElementsAttr toAttribute(const Tensor& tensor);

struct EvaluatorOptions {
  bool round = false;  // Rounds each op's results to their element type; else all floats are f64.
  uint64_t seed = 0;   // Of dropout's masks; see Philox.h.
  int64_t step = 1;    // The 1-based step of dropout's masks.
  int64_t rank = 0;    // Dropout's element indices start at rank * elements: ranks hold consecutive rows of the batch.
  // Turns this rank's term into the sum over all ranks (train.global_sum); none where there is one rank.
  std::function<void(Tensor&)> globalSum;
};

// Evaluates one op on values of its operands' types; an elementwise op also on values of any other one shape. An index
// out of range, an op of another dialect and whatever else has no value is a diagnostic at the op and failure.
mlir::FailureOr<std::vector<Tensor>> evaluate(mlir::Operation* op, llvm::ArrayRef<Tensor> operands,
                                              const EvaluatorOptions& options = {});

struct Evaluation {
  std::vector<Tensor> results;              // Operands of the terminator (func.return or train.yield).
  std::optional<Tensor> loss;               // Operand of train.loss.
  std::map<std::string, Tensor> gradients;  // Operands of train.update, by parameter.
};

// Evaluates a region of one block, as that of `func.func @step`, of a train.optimizer or of a train.fusion: arguments
// by position, parameters by symbol name.
mlir::FailureOr<Evaluation> evaluateRegion(mlir::Region& region, llvm::ArrayRef<Tensor> arguments,
                                           const std::map<std::string, Tensor>& parameters = {},
                                           const EvaluatorOptions& options = {});

// The same for the body of a function (any op with one region).
mlir::FailureOr<Evaluation> evaluateFunction(mlir::Operation* function, llvm::ArrayRef<Tensor> arguments,
                                             const std::map<std::string, Tensor>& parameters = {},
                                             const EvaluatorOptions& options = {});

}  // namespace sheaf::train
