// The emulated matrix instructions against CuTe's layouts (Fragments.h), which were not written for this project: each
// lane puts its operands where CuTe says, and finds the product where CuTe says.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "runtime/device/cuda/kernels/Intrinsics.h"
#include "test/emulation/Fragments.h"
#include "test/emulation/ThreadBlock.h"

namespace sheaf::cuda {
namespace {

using emulation::kWarp;
namespace cute = emulation::cute;

// Small whole numbers, whose products and sums are exact.
std::vector<float> numbers(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> result(count);
  for (float& number : result) number = static_cast<float>(static_cast<int>(random() % 17) - 8);
  return result;
}

template <typename T, int kValues>
void pack(uint32_t (&registers)[kValues / 2], const std::vector<float>& elements, const int (&places)[kValues]) {
  for (int i = 0; i < kValues / 2; ++i)
    registers[i] =
        packHalves<T>(elements[static_cast<size_t>(places[2 * i])], elements[static_cast<size_t>(places[2 * i + 1])]);
}

TEST(Fragments, EveryPlaceIsThereOnce) {
  auto expectAll = [](const auto& table, size_t count) {
    std::vector<int> seen(count, 0);
    for (const auto& lane : table)
      for (int place : lane) ++seen.at(static_cast<size_t>(place));
    EXPECT_EQ(seen, std::vector<int>(count, 1));
  };
  expectAll(cute::kA, 256);
  expectAll(cute::kB, 128);
  expectAll(cute::kC, 128);
  expectAll(cute::kLoaded, 256);
  expectAll(cute::kTransposed, 256);
}

template <typename T>
void expectProducts() {
  const std::vector<float> a = numbers(16 * 16, 1), b = numbers(8 * 16, 2), before = numbers(16 * 8, 3);
  std::vector<float> c(16 * 8, 1e9f);
  emulation::runBlock(kWarp, 0, [&](int lane) {
    uint32_t left[4], right[2];
    pack<T, 8>(left, a, cute::kA[lane]);
    pack<T, 4>(right, b, cute::kB[lane]);
    float sums[4];
    for (int i = 0; i < 4; ++i) sums[i] = before[static_cast<size_t>(cute::kC[lane][i])];
    multiply<T>(sums, left, right[0], right[1]);
    for (int i = 0; i < 4; ++i) c[static_cast<size_t>(cute::kC[lane][i])] = sums[i];
  });
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 8; ++column) {
      float sum = before[row * 8 + column];
      for (size_t k = 0; k < 16; ++k) sum += a[row * 16 + k] * b[column * 16 + k];
      EXPECT_EQ(c[row * 8 + column], sum) << "row " << row << ", column " << column;
    }
}

TEST(Fragments, ProductsAreWhereCuteSays) {
  expectProducts<Bf16>();
  expectProducts<F16>();
}

TEST(Fragments, MatricesAreLoadedAsCuteSays) {
  for (bool transposed : {false, true}) {
    std::vector<uint16_t> rows(kWarp * 8);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i);
    emulation::runBlock(kWarp, 0, [&](int lane) {
      uint32_t loaded[4];
      const void* row = rows.data() + lane * 8;
      if (transposed)
        loadTransposed(loaded, row);
      else
        loadMatrices(loaded, row);
      for (int i = 0; i < 8; ++i)
        EXPECT_EQ(static_cast<int>(loaded[i / 2] >> (i % 2 * 16) & 0xffff),
                  transposed ? cute::kTransposed[lane][i] : cute::kLoaded[lane][i])
            << "lane " << lane << ", value " << i;
    });
  }
}

}  // namespace
}  // namespace sheaf::cuda
