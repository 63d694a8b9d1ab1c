// Builds `train` ops. An op whose operands are all known is evaluated at once, by the evaluator of the dialect:
// handlers of ONNX operators are written once, and what an op computes is defined once.
#pragma once

#include <string>

#include "ir/Train/Constant.h"
#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "mlir/IR/Builders.h"

namespace sheaf::frontend {

using train::Constant;

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
  mlir::RankedTensorType type() const {
    return known ? known->type : mlir::cast<mlir::RankedTensorType>(computed.getType());
  }
  llvm::ArrayRef<int64_t> shape() const { return *this ? type().getShape() : llvm::ArrayRef<int64_t>(); }
  mlir::Type elementType() const { return type().getElementType(); }
  int64_t rank() const { return shape().size(); }
  int64_t dim(int64_t d) const { return shape()[d]; }
  int64_t count() const;
  int64_t storedCount() const;  // elements in memory: one of a splat, 0 of a computed tensor
  bool isFloat() const { return mlir::isa<mlir::FloatType>(elementType()); }
  bool isBool() const { return elementType().isInteger(1); }

 private:
  std::shared_ptr<const Constant> known;
  mlir::Value computed;
};

// Limits of what is evaluated while importing: elements of one constant, of a mask, and bytes of all constants alive.
// An op beyond them stays an op, so that a model cannot make the compiler run out of memory.
inline constexpr int64_t kMaxFolded = int64_t(1) << 26;  // positions x angles of a rotary embedding
inline constexpr int64_t kMaxMask = int64_t(1) << 22;    // 2,048 x 2,048; passes/train/MaskAnalysis.h sees larger ones
inline constexpr int64_t kMaxJoined = int64_t(1) << 16;  // elements of a concatenation that is larger than its operands
inline constexpr int64_t kMaxBytes = int64_t(640) << 20;

// Every method accepts absent tensors and then returns an absent one: a chain reports its first error only.
// Shapes are checked here: an error names the current node.
class Emitter {
 public:
  explicit Emitter(mlir::OpBuilder& builder) : builder(builder), loc(builder.getUnknownLoc()) {}

  // Where errors and ops are located: the node being imported and how to call it.
  void enter(mlir::Location where, std::string what) { loc = where, node = std::move(what); }
  // The current place, to come back to after nodes of a subgraph or of a function.
  struct Place {
    mlir::Location location;
    std::string node;
  };
  Place place() const { return {loc, node}; }
  void enter(Place place) { enter(place.location, std::move(place.node)); }
  mlir::InFlightDiagnostic error() const { return mlir::emitError(loc) << node << ": "; }
  mlir::InFlightDiagnostic warning() const { return mlir::emitWarning(loc) << node << ": "; }
  // The error that operands do not fit together; `setMismatchHint` says what else such an error is to say.
  void mismatch(const llvm::Twine& text) const { error() << text << mismatchHint; }
  void setMismatchHint(llvm::StringRef hint) { mismatchHint = hint; }
  mlir::Location location() const { return loc; }
  mlir::MLIRContext* context() const { return builder.getContext(); }
  mlir::OpBuilder& ops() { return builder; }

  // To be called when the insertion point leaves the block: values materialized so far are not visible there.
  void forget() { constants.clear(), materialized.clear(); }

  // The SSA value of a tensor, materializing a constant once per function.
  mlir::Value materialize(const Tensor& x);

  Tensor splat(mlir::Type element, llvm::ArrayRef<int64_t> shape, double value) {
    return Constant::splat(type(shape, element), value);
  }
  Tensor splatLike(const Tensor& x, double value) { return x ? splat(x.elementType(), x.shape(), value) : Tensor(); }
  Tensor integers(llvm::ArrayRef<int64_t> values);  // a vector of i64
  Tensor floats(mlir::Type element, llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<double> values);

  // Elementwise ops without attributes, by their class: rows of ir/Train/ElementwiseOps.td.
  template <class Op>
  Tensor unary(const Tensor& x) {
    return unary(x, Op::accepts, [&](mlir::ValueRange v) { return Op::create(builder, loc, v); });
  }
  template <class Op>
  Tensor binary(const Tensor& x, const Tensor& y) {  // with ONNX's broadcasting
    return binary(x, y, Op::accepts, [&](mlir::ValueRange v) { return Op::create(builder, loc, v); });
  }
  template <class Op>
  Tensor scalar(const Tensor& x, double y) {
    return binary<Op>(x, x ? splat(x.elementType(), {}, y) : Tensor());
  }
  // MaxOp or MinOp with a limit of x, as in PyTorch's clamp: at the limit x has no gradient.
  template <class Op>
  Tensor bounded(const Tensor& x, const Tensor& limit) {
    return binary(x, limit, Op::accepts,
                  [&](mlir::ValueRange v) { return Op::create(builder, loc, v[0].getType(), v[0], v[1], true); });
  }
  Tensor mod(const Tensor& x, const Tensor& y, bool fmod);
  Tensor compare(train::ComparePredicate predicate, Tensor x, Tensor y);
  Tensor select(Tensor condition, Tensor x, Tensor y);
  Tensor cast(const Tensor& x, mlir::Type type);
  Tensor atLeastF32(const Tensor& x);  // f16 and bf16 as f32
  Tensor gelu(const Tensor& x, bool approximate);
  Tensor stopGradient(const Tensor& x);  // x itself if it cannot have one
  Tensor iota(mlir::Type type, llvm::ArrayRef<int64_t> shape, int64_t axis);

  Tensor reshape(const Tensor& x, llvm::ArrayRef<int64_t> shape);
  Tensor expand(const Tensor& x, llvm::ArrayRef<int64_t> shape);  // numpy broadcasting to exactly this shape
  Tensor transpose(const Tensor& x, llvm::ArrayRef<int64_t> permutation);
  Tensor slice(const Tensor& x, llvm::ArrayRef<int64_t> starts, llvm::ArrayRef<int64_t> sizes,
               llvm::ArrayRef<int64_t> steps);
  Tensor sliceAlong(const Tensor& x, int64_t axis, int64_t start, int64_t size, int64_t step = 1);
  // Zeros around and, of a number for each dimension, between elements.
  Tensor pad(const Tensor& x, llvm::ArrayRef<int64_t> low, llvm::ArrayRef<int64_t> high,
             llvm::ArrayRef<int64_t> interior = {});
  Tensor concat(llvm::ArrayRef<Tensor> operands, int64_t axis);
  Tensor gather(const Tensor& data, Tensor indices, int64_t axis);
  // Looks up in each entry of the first dimension by its own positions in the second: data [n, size, r...] and
  // positions [n, k...] give [n, k..., r...]. Rows of the batch stay apart.
  Tensor gatherWithin(const Tensor& data, const Tensor& positions);
  // As train.gather_elements, train.scatter and train.top_k. Indices of any integer type.
  Tensor gatherElements(const Tensor& data, Tensor indices, int64_t axis);
  Tensor scatter(train::ScatterKind kind, const Tensor& data, Tensor indices, const Tensor& update, int64_t axis);
  Tensor scatterIntoZeros(llvm::ArrayRef<int64_t> shape, Tensor indices, const Tensor& update, int64_t axis);
  Tensor topK(const Tensor& x, int64_t axis, int64_t k, bool largest);
  Tensor cumsum(const Tensor& x, int64_t axis, bool exclusive, bool reverse);
  // `first`: the first of equal largest or smallest elements has the gradient; else they share it.
  Tensor reduce(train::ReduceKind kind, const Tensor& x, llvm::ArrayRef<int64_t> axes, bool first = false);

  Tensor matmul(const Tensor& x, const Tensor& y, bool transposeX = false, bool transposeY = false);  // numpy's matmul
  Tensor softmax(const Tensor& x, int64_t axis, bool logarithm);

  // The shape numpy's broadcasting gives; nothing after an error.
  std::optional<llvm::SmallVector<int64_t>> broadcastShape(llvm::ArrayRef<Tensor> operands);
  bool checkAxis(int64_t& axis, int64_t rank);  // makes a negative axis positive; false after an error
  // False after an error.
  bool checkRank(int64_t rank);
  bool checkShape(llvm::ArrayRef<int64_t> shape);
  // Known indices into that dimension of a tensor are in range.
  bool checkIndices(const Tensor& indices, llvm::ArrayRef<int64_t> shape, int64_t axis);

 private:
  using Create = llvm::function_ref<mlir::Operation*(mlir::ValueRange)>;

  mlir::RankedTensorType type(llvm::ArrayRef<int64_t> shape, mlir::Type element) {
    return mlir::RankedTensorType::get(shape, element);
  }
  // The result of the op that `create` makes of the operands' values: a constant if the operands are and it is not too
  // large, or if it has no elements.
  Tensor apply(llvm::ArrayRef<Tensor> operands, Create create);
  Tensor wideIndices(const Tensor& indices);                              // as i32 or i64
  Tensor evaluate(mlir::Operation* op, llvm::ArrayRef<Tensor> operands);  // absent where it is too large
  using Accepts = bool (*)(mlir::Type element);
  bool checkAccepted(const Tensor& x, Accepts accepts);  // false after an error
  bool checkSameType(const Tensor& x, const Tensor& y);
  Tensor unary(const Tensor& x, Accepts accepts, Create create);
  Tensor binary(const Tensor& x, const Tensor& y, Accepts accepts, Create create);
  Tensor partOfConcat(const Tensor& x, llvm::ArrayRef<int64_t> starts, llvm::ArrayRef<int64_t> sizes,
                      llvm::ArrayRef<int64_t> steps);
  mlir::Value matrixOperand(const Tensor& x, bool& transposed);

  mlir::OpBuilder& builder;
  mlir::Location loc;
  std::string node;
  std::string mismatchHint;
  mlir::Block scratch;  // of ops that are evaluated; its arguments stand for constants
  llvm::DenseMap<mlir::Attribute, mlir::Value> constants;
  // By a constant's data, as long as that lives: large data are turned into an attribute (and hashed) once.
  struct Materialized {
    std::weak_ptr<const Constant::Bytes> data;
    llvm::SmallVector<int64_t> stored;
    mlir::RankedTensorType type;
    mlir::Value value;
  };
  llvm::DenseMap<const Constant::Bytes*, llvm::SmallVector<Materialized, 1>> materialized;
};

}  // namespace sheaf::frontend
