// Writes test/emulation/Fragments.h from CuTe's layouts: run by fragments.py, on any host.
#include <cutlass/version.h>
#include <cstdio>
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>

namespace {

constexpr int kLanes = 32;

template <int kValues, typename Index>
void table(const char* name, const char* text, Index index) {
  std::printf("\n// %s\ninline constexpr int %s[%d][%d] = {\n", text, name, kLanes, kValues);
  for (int lane = 0; lane < kLanes; ++lane) {
    std::printf("    {");
    for (int value = 0; value < kValues; ++value) std::printf("%s%d", value ? ", " : "", index(lane, value));
    std::printf("},\n");
  }
  std::printf("};\n");
}

// An element in row-major order, of CuTe's index of a column-major matrix of so many rows.
int rowMajor(int index, int rows, int columns) {
  return index % rows * columns + index / rows;
}

// ldmatrix: the lane whose row has a 16-bit element, times eight, plus the element's place in the row.
template <typename Traits>
int loaded(int lane, int value) {
  constexpr int kBits = 16, kRowBits = 128;
  const int bit = int(typename Traits::DstLayout{}(lane, value * kBits));
  for (int source = 0; source < kLanes; ++source)
    for (int place = 0; place < kRowBits / kBits; ++place)
      if (int(typename Traits::SrcLayout{}(source, place * kBits)) == bit) return source * (kRowBits / kBits) + place;
  return -1;
}

}  // namespace

int main() {
  using Mma = cute::MMA_Traits<cute::SM80_16x8x16_F32BF16BF16F32_TN>;
  std::printf(
      "// Where the lanes of a warp hold the operands of mma.sync.m16n8k16 and of ldmatrix, by CuTe's layouts of\n"
      "// SM80_16x8x16_F32BF16BF16F32_TN, SM75_U32x4_LDSM_N and SM75_U16x8_LDSM_T: made by test/emulation/fragments/\n"
      "// fragments.py with CUTLASS %d.%d.%d. By lane and value; values of 16 bits share registers, the first one in "
      "the\n"
      "// lower half.\n"
      "#pragma once\n\nnamespace sheaf::emulation::cute {\n",
      CUTLASS_MAJOR, CUTLASS_MINOR, CUTLASS_PATCH);
  table<8>("kA", "Element of a [16, 16].",
           [](int lane, int value) { return rowMajor(int(Mma::ALayout{}(lane, value)), 16, 16); });
  table<4>("kB", "Element of the transposed b [8, 16].",
           [](int lane, int value) { return rowMajor(int(Mma::BLayout{}(lane, value)), 8, 16); });
  table<4>("kC", "Element of c [16, 8].",
           [](int lane, int value) { return rowMajor(int(Mma::CLayout{}(lane, value)), 16, 8); });
  table<8>("kLoaded", "ldmatrix.x4: element of the rows [32, 8] that the lanes name.",
           loaded<cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>>);
  table<8>("kTransposed", "ldmatrix.x4.trans: the same.", loaded<cute::Copy_Traits<cute::SM75_U16x8_LDSM_T>>);
  std::printf("\n}  // namespace sheaf::emulation::cute\n");
}
