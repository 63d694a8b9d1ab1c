// The parts of the evaluator; private to Evaluator*.cpp.
#pragma once

#include "ir/Train/Evaluator.h"
#include "ir/Train/TrainDialect.h"

namespace sheaf::train::evaluator {

using Operands = llvm::ArrayRef<const Tensor*>;
using Results = llvm::MutableArrayRef<Tensor>;

// Each part evaluates the ops of its theme and says so; nullopt: not one of its ops. Results come as zeros of their
// types.
using Outcome = std::optional<llvm::LogicalResult>;
Outcome evaluateElementwise(mlir::Operation* op, Operands in, Results out, const EvaluatorOptions& options);
Outcome evaluateShape(mlir::Operation* op, Operands in, Results out);
Outcome evaluateIndexing(mlir::Operation* op, Operands in, Results out);
Outcome evaluateComposite(mlir::Operation* op, Operands in, Results out, const EvaluatorOptions& options);
Outcome evaluateBatchNorm(mlir::Operation* op, Operands in, Results out, const EvaluatorOptions& options);
Outcome evaluateAttention(mlir::Operation* op, Operands in, Results out);
Outcome evaluateWindowed(mlir::Operation* op, Operands in, Results out);

// GELU and its derivative, by erf, or by tanh where `approximate`.
double gelu(double x, bool approximate);
double geluSlope(double x, bool approximate);

// Elements of one type: `f` those of floats, `i` those of integers and booleans.
struct Column {
  mlir::Type element;
  const double* f;
  const int64_t* i;

  bool isFloat() const { return mlir::isa<mlir::FloatType>(element); }
};
struct MutableColumn {
  mlir::Type element;
  double* f;
  int64_t* i;

  bool isFloat() const { return mlir::isa<mlir::FloatType>(element); }
};

// Converts `count` elements to the range of their type: integers wrap around; floats are rounded if `round`.
void normalize(const MutableColumn& elements, int64_t count, bool round);
inline void normalize(Tensor& t, bool round) {
  normalize({t.type.getElementType(), t.f.data(), t.i.data()}, t.size(), round);
}

// train.cast of a float to an integer or a boolean, before it is normalized.
int64_t toInteger(double x, mlir::IntegerType type);

// Calls f with the vectors that hold the elements: those of floats or those of integers, whichever the first tensor
// has.
template <typename F>
void withElements(const Tensor& in, Tensor& out, F f) {
  if (in.isFloat())
    f(in.f, out.f);
  else
    f(in.i, out.i);
}

// Row-major strides of a shape.
inline llvm::SmallVector<int64_t> stridesOf(llvm::ArrayRef<int64_t> shape) {
  llvm::SmallVector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (int64_t d = int64_t(shape.size()) - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

// Calls f(index, offset) for every element of `shape` in row-major order; offset is base + the sum of index_d *
// strides_d.
template <typename F>
void forEach(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> strides, int64_t base, F f) {
  int64_t rank = shape.size();
  for (int64_t n : shape)
    if (n == 0) return;
  if (rank == 0) return f(int64_t(0), base);
  llvm::SmallVector<int64_t> position(rank, 0);
  for (int64_t index = 0, offset = base;;) {
    for (int64_t j = 0; j < shape[rank - 1]; ++j) f(index++, offset + j * strides[rank - 1]);
    int64_t d = rank - 2;
    for (; d >= 0; --d) {
      offset += strides[d];
      if (++position[d] < shape[d]) break;
      offset -= strides[d] * shape[d];
      position[d] = 0;
    }
    if (d < 0) return;
  }
}

// The product of the dimensions in [begin, end).
inline int64_t extent(llvm::ArrayRef<int64_t> shape, int64_t begin, int64_t end) {
  int64_t n = 1;
  for (int64_t d = begin; d < end; ++d) n *= shape[d];
  return n;
}

}  // namespace sheaf::train::evaluator
