#include <dnnl.h>

#include <algorithm>

#include "runtime/device/cpu/Features.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

// Returns the level of the x86-64 ABI that oneDNN may use, so that ONEDNN_MAX_CPU_ISA limits our own loops as well.
int libraryLevel() {
  const unsigned isa = dnnl_get_effective_cpu_isa();
  auto has = [&](unsigned set) { return (isa & set) == set; };
  return has(dnnl_cpu_isa_avx512_core) ? 4 : has(dnnl_cpu_isa_avx2) ? 3 : 2;
}

const simd::Loops& loopsFor(int level) {
  return level >= 4 ? simd::loopsV4 : level == 3 ? simd::loopsV3 : simd::loopsV2;
}

}  // namespace

const simd::Loops& loops() {
  static const simd::Loops& chosen = loopsFor(std::min(abiLevel(), libraryLevel()));
  return chosen;
}

}  // namespace sheaf::cpu
