// The loops for a type of 16 bits.
#pragma once

#include "runtime/device/cpu/simd/Loops.h"
#include "runtime/plan/ElementTypes.h"

namespace sheaf::cpu {

inline const simd::Halves& halves(plan::Element<plan::BF16>) {
  return loops().bf16;
}
inline const simd::Halves& halves(plan::Element<plan::F16>) {
  return loops().f16;
}

// Returns the loops of a type that is widened to f32. Those for any other type are not used.
inline const simd::Halves& halves(plan::ElementType type) {
  return *plan::visitElement<&plan::ElementFacts::isWidened>(type, [](auto element) { return &halves(element); });
}

}  // namespace sheaf::cpu
