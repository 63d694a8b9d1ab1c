// Follows a value of attention through the reshapes, transposes and broadcasts around it, in terms of attention's own
// dimensions, so that [B, H, S, D], [B*H, S, D] or [B, G, 1, D, T] can all be read as [B, S, H, D].
#pragma once

#include "ir/Train/TensorBuilder.h"
#include "ir/Train/TrainDialect.h"

namespace sheaf::train {

enum class HeadDim { batch, head, row, column };
inline constexpr int numHeadDims = 4;

class HeadLayout {
 public:
  // Reads the dimensions of `value` as products of the given ones (row-major, each with its size); nothing if they do
  // not fit.
  static std::optional<HeadLayout> of(mlir::Value value, llvm::ArrayRef<std::pair<HeadDim, int64_t>> order);

  // What `trace` may go through besides reshapes and transposes.
  enum class Through {
    nothing,
    repeatedHeads,  // Broadcasts that repeat a key/value head for several query heads, next to each other.
    anyRepeats,     // Broadcasts of whole dimensions.
  };
  // Goes to the value's producer as long as that only rearranges, repeats or, where `scales`, multiplies by a splat.
  void trace(Through through, bool scales);

  mlir::Value value() const { return current; }
  // The product of the splats gone through.
  double scale() const { return product; }
  // The size of a dimension in `value()`: less than the whole where it is repeated.
  int64_t size(HeadDim dim) const;
  // The step in row-major elements of `value()` from one index of a dimension to the next, 0 where it is repeated;
  // nothing if the dimension's parts are scattered.
  std::optional<int64_t> stride(HeadDim dim) const;

  // The same layout of another value of the same shape.
  HeadLayout withValue(mlir::Value other) const;
  // The layout of the result of a reshape or transpose of this value; nothing if it cannot be expressed.
  std::optional<HeadLayout> forward(mlir::Operation* user) const;
  // Whether the elements lie in this order of dimensions.
  bool isOrdered(llvm::ArrayRef<HeadDim> order) const;

  // `value()` as a tensor of rank 4 with its dimensions in this order; repeated ones have their smaller size.
  mlir::Value materialize(TensorBuilder& b, llvm::ArrayRef<HeadDim> order) const;

 private:
  // A dimension consists of factors, the major ones first, as reshapes split it.
  struct Factor {
    HeadDim dim;
    int64_t size;
    bool repeated = false;
  };

  llvm::SmallVector<int> sequence() const;                              // Factors in row-major order of the value.
  llvm::SmallVector<int> ordered(llvm::ArrayRef<HeadDim> order) const;  // Factors that are there, by dimension.
  bool regroup(llvm::ArrayRef<int64_t> shape);
  bool dropRepeats(BroadcastOp op, Through through);

  mlir::Value current;
  double product = 1;
  llvm::SmallVector<Factor> factors;
  llvm::SmallVector<llvm::SmallVector<int>> groups;      // The factors of each dimension of the value.
  std::array<llvm::SmallVector<int>, numHeadDims> dims;  // The factors of each dimension of attention.
};

// transpose(value), by transposing instead what the elementwise ops, slices and concatenations before it read if that
// removes the transpose: a rotary embedding between two transposes becomes one without any.
mlir::Value transposeThrough(TensorBuilder& b, mlir::Value value, llvm::ArrayRef<int64_t> permutation);

}  // namespace sheaf::train
