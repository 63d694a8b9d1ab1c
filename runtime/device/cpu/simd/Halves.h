// The loops for a type of 16 bits.
#pragma once

#include "runtime/device/cpu/simd/Loops.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cpu {

// For bf16 or f16.
inline const simd::Halves& halves(plan::ElementType type) {
  return type == plan::F16 ? loops().f16 : loops().bf16;
}

}  // namespace sheaf::cpu
