// The reference evaluator of the `train` dialect: what every op computes, in plain loops. The importer and
// train-fold-constants fold with it (by Constant.h), mask analysis asks it for single elements, and tests compare
// kernels with it.
//
// Rules that every implementation follows (constant folding, mask analysis, kernels):
//   - Integers are two's complement and wrap around at their width: also -x, |x| and x / -1 of the smallest number.
//   - Integer division truncates. x / 0 and x mod 0 are 0; nothing traps.
//   - A shift by less than 0, or by the width or more, shifts every bit out.
//   - Integer powers wrap around. A negative exponent gives 1 for the base 1, 1 or -1 for -1, and 0 for all others.
//   - A float cast to an integer is truncated; out of range it becomes the nearest number of the type, and NaN 0.
//   - Anything cast to i1 is `!= 0`, so NaN is true. An integer cast to a narrower one wraps around.
//   - Floats follow IEEE 754, rounding to nearest, ties to even. f16 and bf16 are computed in f32 and then rounded.
//   - min and max are NaN if an operand is; of zeros that differ in sign they give the second operand.
//   - sign and relu keep NaN. sign keeps the sign of a zero; relu gives 0 for both zeros.
// Kernels differ from the evaluator in three ways: they approximate transcendental functions, they sum in another order
// and in f32, and ops inside one kernel keep 16-bit floats in f32 until they are stored. An index out of range is an
// error, here and at run time.
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

// Conversions from and to attributes (Constant.cpp). An attribute that does not hold its elements (a resource) gives
// failure. Equal elements become a splat.
mlir::FailureOr<Tensor> toTensor(mlir::ElementsAttr attribute);
mlir::DenseElementsAttr toAttribute(const Tensor& tensor);

struct EvaluatorOptions {
  bool round = false;           // Rounds each op's results to their element type; else all floats are f64.
  uint64_t seed = 0;            // Of dropout's masks; see Philox.h.
  int64_t step = 1;             // The 1-based step of dropout's masks.
  int64_t rank = 0, ranks = 1;  // they say where the elements of random numbers lie in the global value
  // Turns this rank's term into the sum over all ranks (train.global_sum); none where there is one rank.
  std::function<void(Tensor&)> globalSum;
  // Fills `all`, which has its type, with the leaves' values one after the other (train.gather_rows).
  std::function<void(const Tensor& own, Tensor& all)> gatherRows;
};

// One element: in `f` that of a float type, in `i` that of an integer type or a boolean.
struct Element {
  double f = 0;
  int64_t i = 0;
};

// Evaluates an elementwise op on one element of each operand, rounded to the result's type. Nothing if it is not
// elementwise, or not defined for its operands' types.
std::optional<Element> evaluateElement(mlir::Operation* op, llvm::ArrayRef<Element> operands);

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
