// Tensors whose elements are known while compiling (shapes, masks, position tables) and ops on them. Elements that
// repeat are stored once, and what an op computes of them is asked of the evaluator.
#pragma once

#include <memory>

#include "ir/Train/Evaluator.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/Builders.h"

namespace sheaf::train {

// Dimension d of the stored elements has the size stored[d]: that of the type, or 1 where the tensor repeats itself
// along d. So a mask that is the same for every row of the batch takes one row, and a splat one element. Copies share
// `data`: stored elements in row-major order, little-endian, booleans one byte each.
struct Constant {
  using Bytes = std::vector<char>;

  mlir::RankedTensorType type;
  llvm::SmallVector<int64_t> stored;
  std::shared_ptr<const Bytes> data;

  // All elements are `value`, cast from f64 to the element type.
  static Constant splat(mlir::RankedTensorType type, double value);
  // Elements in row-major order; those of an integer type wrap around.
  static Constant integers(mlir::RankedTensorType type, llvm::ArrayRef<int64_t> values);
  // Elements as `data` holds them, repetitions written out. Nothing if there are too few or too many bytes.
  static std::optional<Constant> fromBytes(mlir::RankedTensorType type, llvm::StringRef bytes);
  // Nothing if the attribute does not hold its elements (a resource).
  static std::optional<Constant> fromAttribute(mlir::ElementsAttr attribute);
  // Rounds to the element type.
  static Constant fromTensor(const Tensor& tensor);

  llvm::ArrayRef<int64_t> shape() const { return type.getShape(); }
  mlir::Type element() const { return type.getElementType(); }
  bool isSplat() const;

  // The stored elements, in the stored shape.
  Tensor storedElements() const;
  // All elements.
  Tensor elements() const;
  // All elements of an integer type or of booleans.
  std::vector<int64_t> integers() const { return elements().i; }
  // The first element, converted: the only one of a splat. An integer beyond 2^53 is exact in the second form only.
  double splatValue() const;
  int64_t splatInteger() const;

  // Attributes of the stored shape; a splat's has the full shape.
  mlir::DenseElementsAttr attribute() const;
  // The same tensor with its repetitions stored, unless it is a splat.
  Constant written() const;

  // True if the elements along a dimension are the first `part` of them over and over.
  bool repeats(int64_t dimension, int64_t part) const;
  // The first `size` elements along a dimension.
  Constant first(int64_t dimension, int64_t size) const;

  // Bytes of all constants of the process, shared data counted once.
  static int64_t liveBytes();
};

// A value that is a constant, or repeats one along dimensions of size 1. Nothing if it is neither.
std::optional<Constant> knownConstant(mlir::Value v);

// Elements start, start + stride, ... of an attribute, `count` of them; a splat holds one.
Tensor readAttribute(mlir::DenseElementsAttr attribute, int64_t start, int64_t stride, int64_t count);

// A train.constant of the stored elements, followed by a train.broadcast if that is not all of them.
mlir::Value materialize(mlir::OpBuilder& builder, mlir::Location location, const Constant& constant);

// The evaluation of one op on constants. Along a dimension in which all operands repeat, and along which the op itself
// makes no difference, only one element is computed. Results are rounded to their element types.
class ConstantEvaluation {
 public:
  ConstantEvaluation(mlir::Operation* op, llvm::ArrayRef<Constant> operands);

  // The most elements, and the most bytes, that the evaluation stores for one operand or result.
  int64_t elements() const { return mostElements; }
  int64_t bytes() const { return mostBytes; }
  // The stored shape of the first result before repetitions in its values are found.
  llvm::ArrayRef<int64_t> stored() const { return resultStored; }

  // One constant a result. Failure after a diagnostic at the op: it has no value.
  mlir::FailureOr<llvm::SmallVector<Constant>> run() const;

 private:
  void count(llvm::ArrayRef<int64_t> shape, mlir::Type element);
  Constant reshaped() const;
  mlir::FailureOr<llvm::SmallVector<Constant>> runWhole() const;
  mlir::FailureOr<Constant> runInSlabs() const;

  mlir::Operation* op;
  llvm::ArrayRef<Constant> operands;
  bool whole;  // all elements of all operands are needed
  // For each dimension of each operand the dimension of the result that it becomes, element by element; -1 where the
  // op looks along it.
  llvm::SmallVector<llvm::SmallVector<int64_t>> becomes;
  llvm::SmallVector<bool> own;  // dimensions of the result along which the op itself makes elements differ
  llvm::SmallVector<llvm::SmallVector<int64_t>> taken;  // the shapes that the operands are evaluated in
  llvm::SmallVector<int64_t> resultStored;
  int64_t mostElements = 0, mostBytes = 0;
};

}  // namespace sheaf::train
