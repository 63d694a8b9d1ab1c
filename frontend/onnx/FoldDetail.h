// Shared by Fold.cpp (values), FoldShape.cpp (where elements go) and FoldStorage.cpp (how constants are stored).
#pragma once

#include <array>

#include "frontend/onnx/Fold.h"
#include "frontend/onnx/Model.h"

namespace sheaf::frontend::fold {

using Shape = llvm::SmallVector<int64_t>;

inline bool isBool(mlir::Type type) {
  return type.isInteger(1);
}

template <class T>
const std::vector<T>& values(const Constant& x) {
  return std::get<std::vector<T>>(*x.data);
}

// Row-major strides of a constant's data, 0 along dimensions that repeat.
inline Shape strides(const Constant& x) {
  Shape result(x.stored.size());
  int64_t stride = 1;
  for (size_t d = x.stored.size(); d-- > 0; stride *= x.stored[d]) result[d] = x.stored[d] == 1 ? 0 : stride;
  return result;
}

// Visits the rows (last dimension) of `dims` in row-major order: row(position of the first element, the operands'
// offsets there, their strides along the row, length).
template <size_t N, class Row>
void walk(llvm::ArrayRef<int64_t> dims, const std::array<Shape, N>& strides, Row row,
          std::array<int64_t, N> offsets = {}) {
  int64_t rank = dims.size(), length = rank ? dims[rank - 1] : 1, rows = 1;
  std::array<int64_t, N> last;
  for (size_t k = 0; k < N; ++k) last[k] = rank ? strides[k][rank - 1] : 0;
  for (int64_t d = 0; d + 1 < rank; ++d) rows *= dims[d];
  if (length == 0) return;
  Shape index(rank);
  for (int64_t r = 0; r < rows; ++r) {
    row(r * length, offsets, last, length);
    for (int64_t d = rank - 2; d >= 0; --d) {
      for (size_t k = 0; k < N; ++k) offsets[k] += strides[k][d];
      if (++index[d] < dims[d]) break;
      for (size_t k = 0; k < N; ++k) offsets[k] -= strides[k][d] * dims[d];
      index[d] = 0;
    }
  }
}

// A value as an element of `type` holds it: rounded, or wrapped to the integer's width. The last argument says how it
// is stored.
float toType(float value, mlir::Type type);
float toType(double value, mlir::Type type, float);
inline double toType(double value, mlir::Type, double) {
  return value;
}
int64_t toType(int64_t value, mlir::Type type);
int64_t fromDouble(double value, mlir::Type type);

// The number of elements of `stored` if that many of `type` may be folded.
std::optional<int64_t> foldable(llvm::ArrayRef<int64_t> stored, mlir::Type type);

// Shares data, which counts as alive until its last owner is gone.
std::shared_ptr<const Storage> store(Storage data);

// A constant from freshly computed data: drops repetitions.
Constant finish(mlir::Type type, llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> stored, Storage data);

// Writes out the repetitions along the dimensions of `mask`.
Result expand(const Constant& x, llvm::ArrayRef<bool> mask);

// Calls f with a value of the C++ type that stores elements of `type`.
template <class F>
auto dispatch(mlir::Type type, F f) {
  if (isBool(type)) return f(uint8_t());
  if (mlir::isa<mlir::IntegerType>(type)) return f(int64_t());
  if (type.isF64()) return f(double());
  return f(float());
}

}  // namespace sheaf::frontend::fold
