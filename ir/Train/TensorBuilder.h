// Short names for building `train` ops: what gradient rules and rewrites are written in.
#pragma once

#include "ir/Train/TrainDialect.h"

namespace sheaf::train {

// Builds ops at the insertion point of `builder`, all at one location. Binary helpers take operands of one type;
// nothing is broadcast implicitly.
struct TensorBuilder {
  mlir::OpBuilder& builder;
  mlir::Location location;

  template <typename Op, typename... Args>
  mlir::Value make(Args&&... args) {
    return Op::create(builder, location, std::forward<Args>(args)...)->getResult(0);
  }

  static mlir::RankedTensorType typeOf(mlir::Value v) { return mlir::cast<mlir::RankedTensorType>(v.getType()); }
  static mlir::RankedTensorType withShape(mlir::Value v, llvm::ArrayRef<int64_t> shape) {
    return typeOf(v).clone(shape);
  }

  // Constants: a splat of `type`, or of the type of `like`.
  mlir::Value splat(mlir::RankedTensorType type, double value);
  mlir::Value splatLike(mlir::Value like, double value) { return splat(typeOf(like), value); }
  mlir::Value zeros(mlir::RankedTensorType type) { return splat(type, 0); }

  // Elementwise.
  mlir::Value neg(mlir::Value a) { return make<NegOp>(a.getType(), a); }
  mlir::Value exp(mlir::Value a) { return make<ExpOp>(a.getType(), a); }
  mlir::Value add(mlir::Value a, mlir::Value b) { return make<AddOp>(a.getType(), a, b); }
  mlir::Value sub(mlir::Value a, mlir::Value b) { return make<SubOp>(a.getType(), a, b); }
  mlir::Value mul(mlir::Value a, mlir::Value b) { return make<MulOp>(a.getType(), a, b); }
  mlir::Value mul(mlir::Value a, double b) { return mul(a, splatLike(a, b)); }
  mlir::Value div(mlir::Value a, mlir::Value b) { return make<DivOp>(a.getType(), a, b); }
  mlir::Value fma(mlir::Value a, mlir::Value b, mlir::Value c) { return make<FmaOp>(a.getType(), a, b, c); }
  mlir::Value compare(ComparePredicate predicate, mlir::Value a, mlir::Value b) {
    return make<CompareOp>(predicate, a, b);
  }
  mlir::Value select(mlir::Value condition, mlir::Value a, mlir::Value b) {
    return make<SelectOp>(a.getType(), condition, a, b);
  }
  // To the element type of `like`.
  mlir::Value cast(mlir::Value a, mlir::Type elementType);

  // Shape: the operand itself where nothing changes.
  mlir::Value reshape(mlir::Value a, llvm::ArrayRef<int64_t> shape);
  mlir::Value broadcast(mlir::Value a, llvm::ArrayRef<int64_t> shape);
  mlir::Value reduce(ReduceKind kind, mlir::Value a, llvm::ArrayRef<int64_t> axes) {
    return make<ReduceOp>(kind, a, axes);
  }
  // Reduces the last dimension to size 1.
  mlir::Value reduceRows(ReduceKind kind, mlir::Value a) { return reduce(kind, a, {typeOf(a).getRank() - 1}); }
  // Sums the dimensions that `shape` has as 1: the adjoint of broadcast. Leading dimensions are summed as a column
  // reduction of a matrix and trailing ones as a row reduction, the forms that kernels know.
  mlir::Value sumTo(mlir::Value a, llvm::ArrayRef<int64_t> shape);
};

}  // namespace sheaf::train
