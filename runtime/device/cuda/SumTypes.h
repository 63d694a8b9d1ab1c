// The element types that collectives sum.
#pragma once

#include <optional>

#include "runtime/device/cuda/kernels/Reduce.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

inline std::optional<SumType> sumType(plan::ElementType type) {
  switch (type) {
    case plan::F32:
      return SumType::kF32;
    case plan::F64:
      return SumType::kF64;
    case plan::BF16:
      return SumType::kBf16;
    case plan::F16:
      return SumType::kF16;
    case plan::I32:
      return SumType::kI32;
    case plan::I64:
      return SumType::kI64;
    default:
      return std::nullopt;
  }
}

}  // namespace sheaf::cuda
