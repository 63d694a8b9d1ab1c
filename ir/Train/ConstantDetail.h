// Shared by Constant.cpp and ConstantEvaluation.cpp.
#pragma once

#include <cstring>
#include <type_traits>

#include "ir/Train/Constant.h"
#include "ir/Train/ElementTypes.h"
#include "ir/Train/EvaluatorDetail.h"

namespace sheaf::train::constants {

// Bytes of one element.
int64_t widthOf(mlir::Type element);

// Row-major strides of the stored elements, 0 along dimensions that repeat.
llvm::SmallVector<int64_t> stridesOf(const Constant& x);

// Shares data, which counts as alive until its last owner is gone.
std::shared_ptr<const Constant::Bytes> store(Constant::Bytes bytes);

// A constant of the elements in `bytes`, which have the shape `stored`; finds dimensions along which they repeat.
// Elements are equal if their bits are, so that zeros keep their signs.
Constant withoutRepetitions(mlir::RankedTensorType type, llvm::SmallVector<int64_t> stored, Constant::Bytes bytes);

// The same tensor stored in another shape: larger than its own where it repeats.
Constant storedIn(const Constant& x, llvm::ArrayRef<int64_t> stored);

// Reads stored elements at offset + index . strides into `out`, in row-major order of `shape`.
void readElements(const Constant& x, llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> strides, int64_t offset,
                  Tensor& out);

// The elements in a shape between the stored one and the type's.
Tensor read(const Constant& x, llvm::ArrayRef<int64_t> shape);

// Calls f(Stored(), Wide()) with the type that stores an element and the one that computes with it; 16-bit floats are
// stored as uint16_t.
template <typename F>
auto withStorage(mlir::Type element, F f) {
  return plan::visitElement<&plan::ElementFacts::inPlans>(planType(element), [&](auto known) {
    using Known = decltype(known);
    using Stored = typename Known::Stored;
    if constexpr (Known::kFacts.isFloat())
      return f(std::conditional_t<Known::kWidened, uint16_t, Stored>(), double());
    else
      return f(std::conditional_t<std::is_same_v<Stored, bool>, uint8_t, Stored>(), int64_t());
  });
}

// Calls f(load), where load(at, tensor, k) reads stored element `at` of `data` into element k of a tensor.
template <typename F>
void withLoader(mlir::Type element, const char* data, F f) {
  withStorage(element, [&](auto stored, auto wide) {
    using Stored = decltype(stored);
    using Wide = decltype(wide);
    f([=](int64_t at, Tensor& tensor, int64_t k) {
      Stored value;
      std::memcpy(&value, data + at * sizeof(Stored), sizeof(Stored));
      if constexpr (std::is_same_v<Stored, uint16_t>)
        tensor.f[k] = llvm::APFloat(mlir::cast<mlir::FloatType>(element).getFloatSemantics(), llvm::APInt(16, value))
                          .convertToDouble();
      else if constexpr (std::is_same_v<Wide, double>)
        tensor.f[k] = value;
      else
        tensor.i[k] = value;
    });
  });
}

// Calls f(store), where store(at, tensor, k) writes element k of a tensor, rounded, as stored element `at` of `data`.
template <typename F>
void withStorer(mlir::Type element, char* data, F f) {
  withStorage(element, [&](auto stored, auto wide) {
    using Stored = decltype(stored);
    using Wide = decltype(wide);
    f([=](int64_t at, const Tensor& tensor, int64_t k) {
      Stored value;
      if constexpr (std::is_same_v<Stored, uint16_t>) {
        llvm::APFloat number{float(tensor.f[k])};
        bool lost;
        number.convert(mlir::cast<mlir::FloatType>(element).getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven,
                       &lost);
        value = uint16_t(number.bitcastToAPInt().getZExtValue());
      } else if constexpr (std::is_same_v<Wide, double>) {
        value = Stored(tensor.f[k]);
      } else {
        value = Stored(tensor.i[k]);
      }
      std::memcpy(data + at * sizeof(Stored), &value, sizeof(Stored));
    });
  });
}

}  // namespace sheaf::train::constants
