// Builds `train` ops, or folds them where all operands are known: handlers of ONNX operators are written once over
// both.
#pragma once

#include <string>

#include "frontend/onnx/Fold.h"
#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Builders.h"

namespace sheaf::frontend {

// A tensor of the graph: known (a constant) or computed (an SSA value). A default one stands for an absent optional
// input or, as a result, for a failure that has been reported.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Constant c) : known(std::make_shared<const Constant>(std::move(c))) {}
  Tensor(mlir::Value v) : computed(v) {}

  explicit operator bool() const { return known || computed; }
  const Constant* constant() const { return known.get(); }
  mlir::Value value() const { return computed; }
  llvm::ArrayRef<int64_t> shape() const {
    return known      ? llvm::ArrayRef<int64_t>(known->shape)
           : computed ? tensorType().getShape()
                      : llvm::ArrayRef<int64_t>();
  }
  mlir::Type elementType() const { return known ? known->type : tensorType().getElementType(); }
  int64_t rank() const { return shape().size(); }
  int64_t dim(int64_t d) const { return shape()[d]; }
  int64_t count() const;
  bool isFloat() const { return mlir::isa<mlir::FloatType>(elementType()); }
  bool isBool() const { return elementType().isInteger(1); }

 private:
  mlir::RankedTensorType tensorType() const { return mlir::cast<mlir::RankedTensorType>(computed.getType()); }

  std::shared_ptr<const Constant> known;
  mlir::Value computed;
};

// Every method takes absent tensors and then returns an absent one, so that a chain reports its first error only.
// Shapes are checked here: an error names the current node.
class Emitter {
 public:
  explicit Emitter(mlir::OpBuilder& builder) : builder(builder), loc(builder.getUnknownLoc()) {}

  // Where errors and ops are located: the node being imported and how to call it.
  void enter(mlir::Location where, std::string what) { loc = where, node = std::move(what); }
  mlir::InFlightDiagnostic error() const { return mlir::emitError(loc) << node << ": "; }
  mlir::Location location() const { return loc; }
  mlir::MLIRContext* context() const { return builder.getContext(); }
  mlir::OpBuilder& ops() { return builder; }

  // A rank has one row of a batch of several: a dimension of size 1 may be the batch, and what reduces it is no
  // identity.
  void splitIntoRows() { oneRow = true; }

  // To be called when the insertion point leaves the block: values materialized so far are not visible there.
  void forget() { constants.clear(), stored.clear(); }

  // The SSA value of a tensor, materializing a constant once per function.
  mlir::Value materialize(const Tensor& x);

  Tensor splat(mlir::Type type, llvm::ArrayRef<int64_t> shape, double value) { return fold::splat(type, shape, value); }
  Tensor splatLike(const Tensor& x, double value) { return x ? splat(x.elementType(), x.shape(), value) : Tensor(); }
  Tensor integers(llvm::ArrayRef<int64_t> values);  // a vector of i64
  // A vector of i64 that would be `global` if this rank had all rows (see Constant::global).
  Tensor sizes(llvm::ArrayRef<int64_t> values, llvm::ArrayRef<int64_t> global);

  Tensor unary(Unary op, const Tensor& x);
  Tensor binary(Binary op, Tensor x, Tensor y);  // with ONNX's broadcasting
  Tensor scalar(Binary op, const Tensor& x, double y) {
    return binary(op, x, x ? splat(x.elementType(), {}, y) : Tensor());
  }
  Tensor compare(train::ComparePredicate predicate, Tensor x, Tensor y);
  Tensor select(Tensor condition, Tensor x, Tensor y);
  Tensor logicalNot(const Tensor& x);
  Tensor isNan(const Tensor& x);
  Tensor cast(const Tensor& x, mlir::Type type);
  Tensor gelu(const Tensor& x, bool approximate);
  Tensor iota(mlir::Type type, llvm::ArrayRef<int64_t> shape, int64_t axis);

  Tensor reshape(const Tensor& x, llvm::ArrayRef<int64_t> shape);
  Tensor expand(const Tensor& x, llvm::ArrayRef<int64_t> shape);  // numpy broadcasting to exactly this shape
  Tensor transpose(const Tensor& x, llvm::ArrayRef<int64_t> permutation);
  Tensor slice(const Tensor& x, llvm::ArrayRef<int64_t> starts, llvm::ArrayRef<int64_t> sizes,
               llvm::ArrayRef<int64_t> steps);
  Tensor pad(const Tensor& x, llvm::ArrayRef<int64_t> low, llvm::ArrayRef<int64_t> high);  // with zeros
  Tensor concat(llvm::ArrayRef<Tensor> operands, int64_t axis);
  Tensor gather(const Tensor& data, Tensor indices, int64_t axis);
  Tensor cumsum(const Tensor& x, int64_t axis, bool exclusive, bool reverse);
  Tensor reduce(train::ReduceKind kind, const Tensor& x, llvm::ArrayRef<int64_t> axes);  // axes stay as size 1

  Tensor matmul(const Tensor& x, const Tensor& y, bool transposeX = false, bool transposeY = false);  // numpy's matmul
  Tensor softmax(const Tensor& x, int64_t axis, bool logarithm);

  // The shape numpy's broadcasting gives; nothing after an error.
  std::optional<llvm::SmallVector<int64_t>> broadcastShape(llvm::ArrayRef<Tensor> operands);
  bool checkAxis(int64_t& axis, int64_t rank);  // makes a negative axis positive; false after an error
  bool checkShape(llvm::ArrayRef<int64_t> shape);

 private:
  mlir::RankedTensorType type(llvm::ArrayRef<int64_t> shape, mlir::Type element) {
    return mlir::RankedTensorType::get(shape, element);
  }
  mlir::Value matrixOperand(const Tensor& x, bool& transposed);

  mlir::OpBuilder& builder;
  mlir::Location loc;
  std::string node;
  bool oneRow = false;
  llvm::DenseMap<mlir::Attribute, mlir::Value> constants;
  // By a constant's storage, as long as that lives: a large one is turned into an attribute (and hashed) once.
  struct Materialized {
    std::weak_ptr<const Storage> data;
    llvm::SmallVector<int64_t> stored, shape;
    mlir::Type type;
    mlir::Value value;
  };
  llvm::DenseMap<const Storage*, llvm::SmallVector<Materialized, 1>> stored;
};

}  // namespace sheaf::frontend
