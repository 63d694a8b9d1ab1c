// The element types that collectives sum.
#pragma once

#include <optional>

#include "runtime/device/cuda/kernels/Reduce.h"
#include "runtime/plan/ElementTypes.h"

namespace sheaf::cuda {

inline SumType sumType(plan::Element<plan::F32>) {
  return SumType::kF32;
}
inline SumType sumType(plan::Element<plan::F64>) {
  return SumType::kF64;
}
inline SumType sumType(plan::Element<plan::BF16>) {
  return SumType::kBf16;
}
inline SumType sumType(plan::Element<plan::F16>) {
  return SumType::kF16;
}
inline SumType sumType(plan::Element<plan::I32>) {
  return SumType::kI32;
}
inline SumType sumType(plan::Element<plan::I64>) {
  return SumType::kI64;
}

inline std::optional<SumType> sumType(plan::ElementType type) {
  if (!plan::factsOf(type).summed) return std::nullopt;
  return plan::visitElement<&plan::ElementFacts::summed>(type, [](auto element) { return sumType(element); });
}

}  // namespace sheaf::cuda
