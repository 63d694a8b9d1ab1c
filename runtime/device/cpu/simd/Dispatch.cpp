#include "runtime/device/cpu/Features.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {

const simd::Loops& loops() {
  static const simd::Loops& chosen = abiLevel() >= 4 ? simd::loopsV4 : abiLevel() == 3 ? simd::loopsV3 : simd::loopsV2;
  return chosen;
}

}  // namespace sheaf::cpu
