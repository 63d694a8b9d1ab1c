// scatter and top_k: elements that are chosen by indices, and indices that are chosen by elements.
#pragma once

#include "runtime/plan/calls/Moves.h"

namespace sheaf::plan {

enum class ScatterKind : int32_t { kReplace = 0, kAdd = 1, kMul = 2, kMin = 3, kMax = 4 };

inline constexpr Choice<ScatterKind> kScatterKinds[] = {{ScatterKind::kReplace, "replace"},
                                                        {ScatterKind::kAdd, "add"},
                                                        {ScatterKind::kMul, "mul"},
                                                        {ScatterKind::kMin, "min"},
                                                        {ScatterKind::kMax, "max"}};
// All types of plans, by their numbers.
inline constexpr auto kScatterTypes = [] {
  auto choices = kTypeChoices<&ElementFacts::inPlans>;
  std::sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
  return choices;
}();

// On a CPU every index is read once for each part into which its entry's rows are cut, at most 16. A GPU sorts the
// updates by the element that they go to, with a radix sort. So the time is linear in updates and elements.
struct ScatterCall {
  int64_t outer = 0, rows = 0, inner = 0, count = 0, indexBytes = 0;
  ScatterKind kind = ScatterKind::kReplace;
  bool indexOuter = false, indexInner = false, data = false;
  ElementType type = F32;

  Status check() const;
  uint64_t deviceScratch() const;
};

template <>
struct Schema<ScatterCall> {
  using Call = ScatterCall;
  static constexpr std::string_view kName = "scatter";
  static constexpr std::string_view kText =
      "result[i, indices[i, j, k], k] takes update[i, j, k], in the order of j, starting from the data or from zero; "
      "of "
      "several that replace an element the last one stays. All i have the same indices without `index_outer`, and all "
      "k "
      "without `index_inner`; an index outside [-rows, rows) is an error.";
  static constexpr auto kFields = std::tuple{
      required("outer", &Call::outer, kSizes, "the sizes before the indexed dimension, multiplied"),
      required("rows", &Call::rows, kSizes, "the size of the indexed dimension"),
      required("inner", &Call::inner, kSizes, "the sizes after it, multiplied"),
      required("count", &Call::count, kSizes, "indices"),
      required("index_bytes", &Call::indexBytes, kIndexBytes, "of an index: i32 or i64"),
      defaulted("kind", &Call::kind, kScatterKinds,
                "what an update does to its element; a minimum or maximum is NaN if one of both is"),
      flag("index_outer", &Call::indexOuter, "each entry before the indexed dimension has indices of its own"),
      flag("index_inner", &Call::indexInner, "each element after it has indices of its own"),
      flag("data", &Call::data, "the result starts as the data; without it, as zeros"),
      defaulted("type", &Call::type, kScatterTypes,
                "of data, update and result; all but `replace` take f32, f64, i32 or i64, and integers wrap"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"indices", READ, Width::kIndexBytes, [](const Call& c) { return indexCount(c); }, kIndexShape},
      {"update", READ, Width::kType,
       [](const Call& c) {
         return product({c.outer, c.count, c.inner});
       },
       "[outer, count, inner]"},
      {"data", READ, Width::kType,
       [](const Call& c) {
         return product({c.outer, c.rows, c.inner});
       },
       "[outer, rows, inner]", [](const Call& c) { return c.data; }},
      {"result", WRITE, Width::kType,
       [](const Call& c) {
         return product({c.outer, c.rows, c.inner});
       },
       "[outer, rows, inner]"},
  });
};

// On a CPU a line of n elements takes O(n + k log k) steps on average, and O(n log n) at worst. A GPU scans it k times
// where k is at most kTopKScans, and sorts it by a radix sort otherwise: O(n).
struct TopKCall {
  int64_t outer = 0, n = 0, inner = 0, k = 0;
  bool largest = false;
  ElementType type = F32;

  Status check() const;
  uint64_t scratchPerThread() const;
  uint64_t deviceScratch() const;
};

template <>
struct Schema<TopKCall> {
  using Call = TopKCall;
  static constexpr std::string_view kName = "top_k";
  static constexpr std::string_view kText =
      "The indices of the k smallest or largest elements along a dimension, in their order; of equal elements the "
      "lower "
      "index comes first, and a NaN is greater than any number.";
  static constexpr auto kFields = std::tuple{
      required("outer", &Call::outer, kSizes, "the sizes before the dimension, multiplied"),
      required("n", &Call::n, kSizes, "the dimension's size"),
      required("inner", &Call::inner, kSizes, "the sizes after it, multiplied"),
      required("k", &Call::k, kSizes, "indices of a line; at most n"),
      flag("largest", &Call::largest, "the largest, else the smallest"),
      defaulted("type", &Call::type, kArithmeticTypes, "of the source"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"source", READ, Width::kType,
       [](const Call& c) {
         return product({c.outer, c.n, c.inner});
       },
       "[outer, n, inner]"},
      {"result", WRITE, Width::kI64,
       [](const Call& c) {
         return product({c.outer, c.k, c.inner});
       },
       "[outer, k, inner]"},
  });
};

}  // namespace sheaf::plan
