// gather and scatter with indices of their own for each entry and element, and top_k, against plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "test/runtime/DeviceTesting.h"

namespace sheaf::testing {
namespace {

using plan::ScatterKind;
using ::testing::HasSubstr;

struct Shape {
  int64_t outer, rows, inner, count;
  bool indexOuter, indexInner;

  int64_t indices() const { return (indexOuter ? outer : 1) * count * (indexInner ? inner : 1); }
  int64_t index(int64_t o, int64_t i, int64_t j) const {
    return ((indexOuter ? o * count : 0) + i) * (indexInner ? inner : 1) + (indexInner ? j : 0);
  }
};

// Few and many of each; the flat one is cut by rows.
const Shape kShapes[] = {{3, 11, 37, 90, true, true},   {3, 11, 37, 90, true, false},    {3, 11, 37, 90, false, true},
                         {2, 9, 200, 60, false, false}, {1, 700, 1, 5000, false, false}, {300, 13, 1, 4, true, false},
                         {1, 40000, 1, 3, false, false}};

std::vector<int64_t> someIndices(const Shape& s, Numbers& numbers) {
  std::vector<int64_t> indices(s.indices());
  for (int64_t& index : indices) index = numbers.below(2 * s.rows) - s.rows;
  return indices;
}

template <typename T>
std::vector<T> someNumbers(int64_t count, Numbers& numbers) {
  std::vector<T> values(count);
  for (T& value : values) value = T(numbers.below(41) - 20) / (std::is_integral_v<T> ? 1 : T(7));
  return values;
}

TEST(Gather, TakesElementsByIndicesOfTheirOwn) {
  for (const Shape& s : kShapes) {
    Numbers numbers(11);
    const auto data = someNumbers<double>(s.outer * s.rows * s.inner, numbers);
    const std::vector<int64_t> indices = someIndices(s, numbers);
    std::vector<double> expected(s.outer * s.count * s.inner);
    for (int64_t o = 0; o < s.outer; ++o)
      for (int64_t i = 0; i < s.count; ++i)
        for (int64_t j = 0; j < s.inner; ++j)
          expected[(o * s.count + i) * s.inner + j] =
              data[(o * s.rows + (indices[s.index(o, i, j)] + s.rows) % s.rows) * s.inner + j];
    std::vector<Argument> arguments{Argument::input(data), Argument::input(indices),
                                    Argument::output<double>(expected.size(), NAN)};
    const plan::GatherCall call{.outer = s.outer,
                                .rows = s.rows,
                                .inner = s.inner,
                                .count = s.count,
                                .elementBytes = 8,
                                .indexBytes = 8,
                                .indexOuter = s.indexOuter,
                                .indexInner = s.indexInner};
    ASSERT_EQ(runOnThreads(call, arguments).message(), "");
    EXPECT_EQ(arguments[2].values<double>(), expected);
  }
}

template <typename T>
T combined(ScatterKind kind, T x, T y) {
  switch (kind) {
    case ScatterKind::kReplace:
      return y;
    case ScatterKind::kAdd:
      return T(x + y);
    case ScatterKind::kMul:
      return T(x * y);
    case ScatterKind::kMin:
      return std::min(x, y);
    case ScatterKind::kMax:
      return std::max(x, y);
  }
  return x;
}

template <typename T>
void expectScatter(plan::ElementType type) {
  for (const Shape& s : kShapes)
    for (ScatterKind kind :
         {ScatterKind::kReplace, ScatterKind::kAdd, ScatterKind::kMul, ScatterKind::kMin, ScatterKind::kMax})
      for (bool hasData : {true, false}) {
        if (kind == ScatterKind::kMul && std::is_integral_v<T>) continue;  // signed overflow; see Scatter.IntegersWrap
        Numbers numbers(12);
        const std::vector<int64_t> indices = someIndices(s, numbers);
        const auto data = someNumbers<T>(s.outer * s.rows * s.inner, numbers);
        const auto update = someNumbers<T>(s.outer * s.count * s.inner, numbers);
        std::vector<T> expected = hasData ? data : std::vector<T>(data.size());
        for (int64_t o = 0; o < s.outer; ++o)
          for (int64_t i = 0; i < s.count; ++i)
            for (int64_t j = 0; j < s.inner; ++j) {
              const int64_t row = (indices[s.index(o, i, j)] + s.rows) % s.rows;
              T& to = expected[(o * s.rows + row) * s.inner + j];
              to = combined(kind, to, update[(o * s.count + i) * s.inner + j]);
            }
        std::vector<Argument> arguments{Argument::input(indices), Argument::input(update)};
        if (hasData) arguments.push_back(Argument::input(data));
        arguments.push_back(Argument::output<T>(expected.size(), T(99)));
        const plan::ScatterCall call{.outer = s.outer,
                                     .rows = s.rows,
                                     .inner = s.inner,
                                     .count = s.count,
                                     .indexBytes = 8,
                                     .kind = kind,
                                     .indexOuter = s.indexOuter,
                                     .indexInner = s.indexInner,
                                     .data = hasData,
                                     .type = type};
        ASSERT_EQ(runOnThreads(call, arguments).message(), "");
        EXPECT_EQ(arguments.back().values<T>(), expected) << "kind " << int(kind) << ", " << s.rows << " rows";
      }
}

TEST(Scatter, OfF32) {
  expectScatter<float>(plan::F32);
}
TEST(Scatter, OfF64) {
  expectScatter<double>(plan::F64);
}
TEST(Scatter, OfI32) {
  expectScatter<int32_t>(plan::I32);
}
TEST(Scatter, OfI64) {
  expectScatter<int64_t>(plan::I64);
}

TEST(Scatter, ReplacesElementsOfAnyWidth) {
  for (plan::ElementType type : {plan::BOOL, plan::BF16, plan::I32, plan::F64}) {
    const int64_t width = int64_t(plan::elementBytes(type));
    std::vector<uint8_t> update(3 * width), expected(4 * width, 0);
    for (size_t i = 0; i < update.size(); ++i) update[i] = uint8_t(i + 1);
    const std::vector<int32_t> indices{2, -4, 2};  // the last one stays
    for (int64_t i : {1, 2}) std::copy_n(&update[i * width], width, &expected[(indices[i] + 4) % 4 * width]);
    std::vector<Argument> arguments{Argument::input(indices), Argument::input(update),
                                    Argument::output<uint8_t>(4 * width, 77)};
    ASSERT_EQ(
        runOnThreads(plan::ScatterCall{.outer = 1, .rows = 4, .inner = 1, .count = 3, .indexBytes = 4, .type = type},
                     arguments)
            .message(),
        "");
    EXPECT_EQ(arguments[2].values<uint8_t>(), expected);
  }
}

TEST(Scatter, IntegersWrapAndNanStays) {
  const std::vector<int64_t> indices{0, 0, 1};
  auto result = [&]<typename T>(ScatterKind kind, plan::ElementType type, std::vector<T> data, std::vector<T> update) {
    std::vector<Argument> arguments{Argument::input(indices), Argument::input(update), Argument::input(data),
                                    Argument::output<T>(2, T(0))};
    const plan::ScatterCall call{
        .outer = 1, .rows = 2, .inner = 1, .count = 3, .indexBytes = 8, .kind = kind, .data = true, .type = type};
    EXPECT_EQ(runOnThreads(call, arguments).message(), "");
    return arguments[3].values<T>();
  };
  EXPECT_THAT(result(ScatterKind::kMul, plan::I32, std::vector<int32_t>{3, 5}, {1 << 20, 1 << 20, -2}),
              ::testing::ElementsAre(0, -10));
  EXPECT_THAT(result(ScatterKind::kAdd, plan::I32, std::vector<int32_t>{1, 0}, {1 << 30, 1 << 30, 4}),
              ::testing::ElementsAre(-2147483647, 4));
  for (ScatterKind kind : {ScatterKind::kMin, ScatterKind::kMax}) {
    const std::vector<float> kept = result(kind, plan::F32, std::vector<float>{1, NAN}, {NAN, 2, 3});
    EXPECT_TRUE(std::isnan(kept[0]) && std::isnan(kept[1]));
  }
}

TEST(Scatter, NamesAnIndexOutOfRange) {
  std::vector<Argument> arguments{Argument::input(std::vector<int64_t>{0, 5}), Argument::input(std::vector<float>(2)),
                                  Argument::output<float>(5, 0)};
  const Status status =
      runCall(plan::ScatterCall{.outer = 1, .rows = 5, .inner = 1, .count = 2, .indexBytes = 8}, arguments);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("(scatter '"));
  EXPECT_THAT(status.message(), HasSubstr(kOnGpu ? "index" : "index 5 at position 1 is outside [-5, 5)"));
}

template <typename T>
void expectTopK(plan::ElementType type) {
  struct Lines {
    int64_t outer, n, inner, k;
  };
  // One, few and all; lines that a GPU scans and lines that it sorts.
  for (Lines s : {Lines{40, 64, 1, 1}, Lines{3, 50, 7, 4}, Lines{5, 64, 3, 20}, Lines{1, 5000, 1, 5000},
                  Lines{300, 9, 1, 9}, Lines{2, 3, 2, 3}})
    for (bool largest : {true, false}) {
      Numbers numbers(13);
      std::vector<T> source = someNumbers<T>(s.outer * s.n * s.inner, numbers);  // many are equal
      if constexpr (!std::is_integral_v<T>)
        for (size_t i = 3; i < source.size(); i += 17)
          source[i] = i % 4 == 0 ? NAN : i % 4 == 1 ? T(-0.0) : i % 4 == 2 ? T(INFINITY) : T(0);
      std::vector<int64_t> expected(s.outer * s.k * s.inner), order(s.n);
      for (int64_t o = 0; o < s.outer; ++o)
        for (int64_t j = 0; j < s.inner; ++j) {
          auto value = [&](int64_t i) { return source[(o * s.n + i) * s.inner + j]; };
          auto isLess = [](T a, T b) { return a < b || (a == a && b != b); };
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
            return largest ? isLess(value(b), value(a)) : isLess(value(a), value(b));
          });
          for (int64_t i = 0; i < s.k; ++i) expected[(o * s.k + i) * s.inner + j] = order[i];
        }
      std::vector<Argument> arguments{Argument::input(source), Argument::output<int64_t>(expected.size(), -1)};
      ASSERT_EQ(runOnThreads(plan::TopKCall{s.outer, s.n, s.inner, s.k, largest, type}, arguments).message(), "");
      EXPECT_EQ(arguments[1].values<int64_t>(), expected) << s.k << " of " << s.n;
    }
}

TEST(TopK, OfF32) {
  expectTopK<float>(plan::F32);
}
TEST(TopK, OfF64) {
  expectTopK<double>(plan::F64);
}
TEST(TopK, OfI32) {
  expectTopK<int32_t>(plan::I32);
}
TEST(TopK, OfI64) {
  expectTopK<int64_t>(plan::I64);
}

}  // namespace
}  // namespace sheaf::testing
