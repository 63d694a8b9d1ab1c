// These tests see which level of our own loops is chosen under limits on oneDNN's instructions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/device/cpu/Features.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

// Ends the process with the level of the loops that are chosen when oneDNN is limited by the variable. oneDNN reads it
// once, so each choice needs a process of its own.
[[noreturn]] void exitWithLevel(const char* variable, const char* limit) {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) unsetenv(name);
  if (limit) setenv(variable, limit, 1);
  const simd::Loops* chosen = &loops();
  std::_Exit(chosen == &simd::loopsV4 ? 4 : chosen == &simd::loopsV3 ? 3 : chosen == &simd::loopsV2 ? 2 : 0);
}

void expectLevel(int level, const char* limit) {
  for (const char* variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    SCOPED_TRACE(variable);
    EXPECT_EXIT(exitWithLevel(variable, limit), testing::ExitedWithCode(level), "");
  }
}

// A processor with AVX2, at least, has loops of a higher level than the one that is chosen here.
TEST(SimdDispatch, LoopsWithoutAvxUnderALimitToSse) {
  expectLevel(2, "SSE41");
  expectLevel(2, "AVX");
}

TEST(SimdDispatch, NoLoopsBeyondAvx2UnderALimitToAvx2) {
  expectLevel(std::min(3, abiLevel()), "AVX2");
}

TEST(SimdDispatch, LoopsOfTheProcessorWithoutALimit) {
  expectLevel(abiLevel(), "AVX512_CORE");
  expectLevel(abiLevel(), nullptr);
}

}  // namespace
}  // namespace sheaf::cpu
