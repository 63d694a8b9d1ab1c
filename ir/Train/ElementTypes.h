// The element types of MLIR and ONNX for the rows of runtime/plan/ElementTypes.h.
#pragma once

#include <cstdint>

#include "mlir/IR/BuiltinTypes.h"
#include "runtime/plan/ElementTypes.h"

namespace sheaf::train {

// MLIR's type for a row that is a float.
template <plan::ElementType Type>
struct FloatOf;
template <>
struct FloatOf<plan::F32> {
  using Type = mlir::Float32Type;
};
template <>
struct FloatOf<plan::F64> {
  using Type = mlir::Float64Type;
};
template <>
struct FloatOf<plan::BF16> {
  using Type = mlir::BFloat16Type;
};
template <>
struct FloatOf<plan::F16> {
  using Type = mlir::Float16Type;
};

// The row of an element type; kNoElement for a type that plans do not have.
const plan::ElementFacts& elementFacts(mlir::Type element);
// The type in plans; ELEMENT_TYPE_UNSPECIFIED for a type that plans do not have.
inline plan::ElementType planType(mlir::Type element) {
  return elementFacts(element).type;
}
// MLIR's type for a type in plans.
mlir::Type elementType(mlir::MLIRContext* context, plan::ElementType type);
// True if kernels compute in a wider type than memory holds, as with floats of 16 bits.
inline bool isWidened(mlir::Type element) {
  return elementFacts(element).isWidened();
}

// The row of a type of plans by its onnx.TensorProto.DataType; kNoElement for any other number.
const plan::ElementFacts& factsOfOnnx(int32_t dataType);

}  // namespace sheaf::train
