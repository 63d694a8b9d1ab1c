// Values known while importing: integers and shapes, masks, position tables. Stored without their repetitions.
#pragma once

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"

namespace sheaf::frontend {

// Booleans as bytes of 0 or 1, integers of every width as int64, f32, f16 and bf16 as float, f64 as double.
using Storage = std::variant<std::vector<uint8_t>, std::vector<int64_t>, std::vector<float>, std::vector<double>>;

// A tensor of `shape` whose element type is `type`. Dimension i of `data` has the size stored[i]: shape[i], or 1 where
// the tensor repeats itself along i. So a mask that is the same for every row of the batch costs one row, and a splat
// one element. Copies share `data`.
struct Constant {
  mlir::Type type;
  llvm::SmallVector<int64_t> shape, stored;
  std::shared_ptr<const Storage> data;
  // What it would be if this rank had the rows of all ranks, where that differs: numbers of rows, taken from the shape
  // of an input. As a shape they count this rank's rows, in arithmetic on floats (a mean) the whole batch's.
  std::shared_ptr<const Constant> global = nullptr;

  bool isSplat() const;
  // The elements in row-major order of `shape`, repetitions written out; for small integer tensors.
  std::vector<int64_t> integers() const;
  // The one value of a splat; an integer beyond 2^53 is exact only in the second form.
  double splatValue() const;
  int64_t splatInteger() const;
  // Of the stored shape; a splat's has the full shape.
  mlir::DenseElementsAttr attribute() const;
};

#define SHEAF_UNARY_OPS(X) \
  X(Neg)                   \
  X(Abs)                   \
  X(Sign)                  \
  X(Exp) X(Log) X(Sqrt) X(Rsqrt) X(Reciprocal) X(Tanh) X(Sigmoid) X(Erf) X(Relu) X(Sin) X(Cos) X(Floor) X(Ceil) X(Round)
#define SHEAF_BINARY_OPS(X) X(Add) X(Sub) X(Mul) X(Div) X(Pow) X(Min) X(Max) X(Mod) X(Fmod) X(And) X(Or) X(Xor)
#define SHEAF_ENUMERATOR(name) name,
enum class Unary { SHEAF_UNARY_OPS(SHEAF_ENUMERATOR) };
enum class Binary { SHEAF_BINARY_OPS(SHEAF_ENUMERATOR) };
#undef SHEAF_ENUMERATOR

// Every function returns nothing where the result would be stored in more than kMaxFolded elements or exceed the limit
// on all constants together, or is not defined (a division by zero, an index out of range); compare, too, where two
// smaller operands would become a mask of more than kMaxMask. Operands of the elementwise ones have the same shape.
namespace fold {

inline constexpr int64_t kMaxFolded = int64_t(1) << 26;   // positions x angles of a rotary embedding
inline constexpr int64_t kMaxMask = int64_t(1) << 22;     // 2,048 x 2,048; passes/train/MaskAnalysis.h sees larger ones
inline constexpr int64_t kMaxBytes = int64_t(640) << 20;  // of all constants alive, whatever a model asks for

using Result = std::optional<Constant>;

Constant splat(mlir::Type type, llvm::ArrayRef<int64_t> shape, double value);
Constant integers(mlir::Type type, llvm::ArrayRef<int64_t> shape, std::vector<int64_t> values);
// From little-endian bytes, one element after the other (booleans a byte each).
Result fromBytes(mlir::Type type, llvm::ArrayRef<int64_t> shape, llvm::StringRef bytes);
// The same tensor with its repetitions written out, unless it is a splat.
Constant full(const Constant& x);
Result iota(mlir::Type type, int64_t count, double start, double step);

Result unary(Unary op, const Constant& x);
Result binary(Binary op, const Constant& x, const Constant& y);
Result compare(train::ComparePredicate predicate, const Constant& x, const Constant& y);
Result select(const Constant& condition, const Constant& x, const Constant& y);
Result logicalNot(const Constant& x);
Result isNan(const Constant& x);
Result cast(const Constant& x, mlir::Type type);

Result reshape(const Constant& x, llvm::ArrayRef<int64_t> shape);
Result broadcast(const Constant& x, llvm::ArrayRef<int64_t> shape);  // same rank; expands dimensions of size 1
Result transpose(const Constant& x, llvm::ArrayRef<int64_t> permutation);
Result slice(const Constant& x, llvm::ArrayRef<int64_t> starts, llvm::ArrayRef<int64_t> sizes,
             llvm::ArrayRef<int64_t> steps);
Result concat(llvm::ArrayRef<Constant> operands, int64_t axis);
Result gather(const Constant& data, const Constant& indices, int64_t axis);
Result gatherNd(const Constant& data, const Constant& indices);  // no batch dimensions
Result cumsum(const Constant& x, int64_t axis, bool exclusive, bool reverse);
Result reduce(train::ReduceKind kind, const Constant& x, llvm::ArrayRef<int64_t> axes);

}  // namespace fold
}  // namespace sheaf::frontend
