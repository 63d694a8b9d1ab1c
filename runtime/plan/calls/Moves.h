// gather, scatter_add, copy, zero, dropout and random_uniform: elements that move, and random numbers.
#pragma once

#include "runtime/plan/CallSchema.h"
#include "runtime/plan/StridedCopy.h"

namespace sheaf::plan {

inline constexpr Choice<int64_t> kIndexBytes[] = {{4, "4"}, {8, "8"}};
inline constexpr Choice<int64_t> kElementBytes[] = {{1, "1"}, {2, "2"}, {4, "4"}, {8, "8"}};

// Indices of a call that may have some of their own for each entry before the indexed dimension, and after it.
template <typename Call>
constexpr int64_t indexCount(const Call& c) {
  return product({c.indexOuter ? c.outer : 1, c.count, c.indexInner ? c.inner : 1});
}
inline constexpr std::string_view kIndexShape = "[outer or 1, count, inner or 1]";

struct GatherCall {
  int64_t outer = 0, rows = 0, inner = 0, count = 0, elementBytes = 0, indexBytes = 0;
  bool indexOuter = false, indexInner = false;
};

template <>
struct Schema<GatherCall> {
  using Call = GatherCall;
  static constexpr std::string_view kName = "gather";
  static constexpr std::string_view kText =
      "result[i, j, k] = data[i, indices[i, j, k], k], where all i have the same indices without `index_outer`, and "
      "all "
      "k without `index_inner`; an index outside [-rows, rows) is an error.";
  static constexpr auto kFields = std::tuple{
      required("outer", &Call::outer, kSizes, "the sizes before the indexed dimension, multiplied"),
      required("rows", &Call::rows, kSizes, "the size of the indexed dimension"),
      required("inner", &Call::inner, kSizes, "the sizes after it, multiplied"),
      required("count", &Call::count, kSizes, "indices"),
      required("element_bytes", &Call::elementBytes, kElementBytes, "of data and result"),
      required("index_bytes", &Call::indexBytes, kIndexBytes, "of an index: i32 or i64"),
      flag("index_outer", &Call::indexOuter, "each entry before the indexed dimension has indices of its own"),
      flag("index_inner", &Call::indexInner, "each element after it has indices of its own"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"data", READ, Width::kElementBytes,
       [](const Call& c) {
         return product({c.outer, c.rows, c.inner});
       },
       "[outer, rows, inner]"},
      {"indices", READ, Width::kIndexBytes, [](const Call& c) { return indexCount(c); }, kIndexShape},
      {"result", WRITE, Width::kElementBytes,
       [](const Call& c) {
         return product({c.outer, c.count, c.inner});
       },
       "[outer, count, inner]"},
  });
};

struct ScatterAddCall {
  int64_t outer = 0, rows = 0, inner = 0, count = 0, indexBytes = 0;
  ElementType type = F32;

  uint64_t scratchPerThread() const;
  uint64_t deviceScratch() const;
};

template <>
struct Schema<ScatterAddCall> {
  using Call = ScatterAddCall;
  static constexpr std::string_view kName = "scatter_add";
  static constexpr std::string_view kText =
      "result[i, indices[j]] += update[i, j], from zero, in the order of j; an index outside [-rows, rows) is an "
      "error.";
  static constexpr auto kFields = std::tuple{
      required("outer", &Call::outer, kSizes, "the sizes before the indexed dimension, multiplied"),
      required("rows", &Call::rows, kSizes, "the size of the indexed dimension"),
      required("inner", &Call::inner, kSizes, "the sizes after it, multiplied"),
      required("count", &Call::count, kSizes, "indices"),
      required("index_bytes", &Call::indexBytes, kIndexBytes, "of an index: i32 or i64"),
      defaulted("type", &Call::type, kFloatTypes, "of update and result"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"update", READ, Width::kType,
       [](const Call& c) {
         return product({c.outer, c.count, c.inner});
       },
       "[outer, count, inner]"},
      {"indices", READ, Width::kIndexBytes, [](const Call& c) { return c.count; }, "[count]"},
      {"result", WRITE, Width::kType,
       [](const Call& c) {
         return product({c.outer, c.rows, c.inner});
       },
       "[outer, rows, inner]"},
  });
};

struct CopyCall {
  int64_t elementBytes = 0;
  std::vector<CopyDimension> dimensions = {};
  int64_t sourceOffset = 0;
  bool zero = false;

  // Elements of each operand from its begin to the last that is accessed.
  int64_t sourceElements() const;
  int64_t destinationElements() const;
  Runs destinationRuns() const;
  Status check() const;
};

template <>
struct Schema<CopyCall> {
  using Call = CopyCall;
  static constexpr std::string_view kName = "copy";
  static constexpr std::string_view kText = "A strided copy. No two elements have the same place in the destination.";
  static constexpr Range kAnyStride{-kMaxStride, kMaxStride};
  static constexpr auto kFields = std::tuple{
      required("element_bytes", &Call::elementBytes, kElementBytes, "of an element"),
      List{"rank", &Call::dimensions, 16,
           std::tuple{
               required("size", &CopyDimension::size, kSizes, "elements"),
               required("source_stride", &CopyDimension::source, kAnyStride,
                        "from one to the next in the source, in elements"),
               required("destination_stride", &CopyDimension::destination, kAnyStride,
                        "from one to the next in the destination; at least 1 where the size is not 1"),
           },
           "dimensions"},
      defaulted("source_offset", &Call::sourceOffset, kStrides, "the source's first element, for strides below 0"),
      flag("zero", &Call::zero, "the whole destination operand is set to zero before"),
  };
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"source", READ, Width::kElementBytes, [](const Call& c) { return c.sourceElements(); }, "strided"},
      {"destination", WRITE, Width::kElementBytes, [](const Call& c) { return c.destinationElements(); }, "strided",
       nullptr, [](const Call& c) { return c.destinationRuns(); }},
  });
};

struct ZeroCall {};

template <>
struct Schema<ZeroCall> {
  static constexpr std::string_view kName = "zero";
  static constexpr std::string_view kText = "Sets all bytes of its operand to zero.";
  static constexpr auto kFields = std::tuple{};
  static constexpr auto kOperands = std::to_array<OperandRow<ZeroCall>>({
      {"destination", WRITE, Width::kByte, [](const ZeroCall&) { return int64_t{0}; }, "any bytes", nullptr,
       [](const ZeroCall&) {
         return Runs{{}, kWhole};
       }},
  });
};

// Random numbers are drawn by an element's index in the global value, [blocks, pieces, count / blocks]. The rank has
// its piece data_index, or all of a `whole` value.
struct RandomShape {
  int64_t count = 0, node = 0, blocks = 1, pieces = 1;
  bool whole = false;

  int64_t run() const { return count / blocks; }
  // The global index of the first element of a block, for data_index `piece`.
  uint64_t firstIndex(int64_t block, int64_t piece) const {
    return static_cast<uint64_t>(whole ? block : block * pieces + piece) * static_cast<uint64_t>(run());
  }
  Status check() const;
};

template <typename Call>
constexpr auto randomFields() {
  return std::tuple{
      required("count", &Call::count, kSizes, "elements of a rank"),
      required("node", &Call::node, Range{0, UINT32_MAX}, "a number of its own for each random node of a model"),
      defaulted("blocks", &Call::blocks, Range{1, kMaxSize}, "ranges of neighbours that a rank has; they divide count"),
      defaulted("pieces", &Call::pieces, Range{1, kMaxSize}, "pieces of the batch, if there are several blocks"),
      flag("whole", &Call::whole, "every rank has the whole value"),
  };
}

struct DropoutCall : RandomShape {
  double ratio = 0;
};

template <>
struct Schema<DropoutCall> {
  using Call = DropoutCall;
  static constexpr std::string_view kName = "dropout";
  static constexpr bool kRandom = true;
  static constexpr std::string_view kText =
      "train.dropout: what is kept is a function of the seed (Plan.training), the step, the node and the element's "
      "index in the global value, [blocks, pieces, count / blocks], of which a rank has piece data_index.";
  static constexpr auto kFields =
      std::tuple_cat(randomFields<Call>(),
                     std::tuple{required("ratio", &Call::ratio, RealRange{0, 1}, "the part that is set to zero")});
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"source", READ, Width::kF32, [](const Call& c) { return c.count; }, "[count]"},
      {"destination", WRITE, Width::kF32, [](const Call& c) { return c.count; }, "[count]"},
  });
};

struct RandomUniformCall : RandomShape {};

template <>
struct Schema<RandomUniformCall> {
  using Call = RandomUniformCall;
  static constexpr std::string_view kName = "random_uniform";
  static constexpr bool kRandom = true;
  static constexpr std::string_view kText =
      "train.random_uniform: numbers in (0, 1), functions of the seed (Plan.training), the step, the node and the "
      "element's index in the global value, as of dropout.";
  static constexpr auto kFields = randomFields<Call>();
  static constexpr auto kOperands = std::to_array<OperandRow<Call>>({
      {"destination", WRITE, Width::kF32, [](const Call& c) { return c.count; }, "[count]"},
  });
};

}  // namespace sheaf::plan
