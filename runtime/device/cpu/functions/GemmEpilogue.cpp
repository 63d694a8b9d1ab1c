#include "runtime/device/cpu/functions/GemmEpilogue.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "runtime/device/cpu/simd/Halves.h"

namespace sheaf::cpu {
namespace {

// Elements that are worked on at a time, in f32.
constexpr int64_t kColumns = 256;

// Elements of a plan::Element in memory: an f32 lies there as it is, other types by their bits.
template <typename T>
using Raw = std::conditional_t<T::kWidened, uint16_t, float>;

template <typename T>
void load(const Raw<T>* from, float* to, int64_t count) {
  if constexpr (T::kWidened)
    halves(T()).widen(from, to, count);
  else
    std::memcpy(to, from, count * sizeof(float));
}
template <typename T>
void store(const float* from, Raw<T>* to, int64_t count) {
  if constexpr (T::kWidened)
    halves(T()).narrow(from, to, count);
  else
    std::memcpy(to, from, count * sizeof(float));
}
template <typename T>
void add(float* sums, const Raw<T>* from, int64_t count) {
  if constexpr (T::kWidened)
    halves(T()).add(sums, from, count);
  else
    loops().add(sums, from, count);
}

}  // namespace

GemmEpilogue::GemmEpilogue(const plan::GemmCall& call)
    : call_(call),
      a_(plan::operandIndex<"a">(call)),
      b_(plan::operandIndex<"b">(call)),
      c_(plan::operandIndex<"c">(call)),
      bias_(plan::operandIndex<"bias">(call)),
      geluInput_(plan::operandIndex<"gelu_input">(call)),
      savedGeluInput_(plan::operandIndex<"saved_gelu_input">(call)),
      sum_(plan::operandIndex<"sum">(call)) {}

template <typename T>
void GemmEpilogue::finishRow(const Invocation& invocation, int64_t row, int64_t column, int64_t columns) const {
  using Stored = Raw<T>;
  Stored* c = invocation.operand<Stored>(c_) + row * call_.ldc + column;
  float values[kColumns], others[kColumns];
  load<T>(c, values, columns);
  if (call_.addsBias()) {
    load<T>(invocation.operand<Stored>(bias_) + column, others, columns);
    loops().add(values, others, columns);
  }
  if (call_.appliesGelu()) {
    store<T>(values, invocation.operand<Stored>(savedGeluInput_) + row * call_.n + column, columns);
    loops().gelu(values, columns);
  }
  if (geluInput_ >= 0) {
    load<T>(invocation.operand<Stored>(geluInput_) + row * call_.n + column, others, columns);
    loops().geluGradient(others, values, columns);
  }
  store<T>(values, c, columns);
}

void GemmEpilogue::finish(const Invocation& invocation, int64_t row, int64_t column, int64_t rows,
                          int64_t columns) const {
  if (call_.epilogue == plan::GemmEpilogue::kNone || call_.sums()) return;
  for (int64_t i = row; i < row + rows; ++i)
    for (int64_t j = column; j < column + columns; j += kColumns) {
      const int64_t width = std::min(kColumns, column + columns - j);
      plan::visitElement<&plan::ElementFacts::products>(
          call_.type, [&](auto element) { finishRow<decltype(element)>(invocation, i, j, width); });
    }
}

template <typename T>
void GemmEpilogue::sumColumns(const Invocation& invocation) const {
  // Both a and b have a row for each of k.
  const bool ofA = call_.epilogue == plan::GemmEpilogue::kSumA;
  using Stored = Raw<T>;
  const Stored* source = invocation.operand<Stored>(ofA ? a_ : b_);
  const int64_t row = ofA ? call_.lda : call_.ldb, all = ofA ? call_.m : call_.n;
  Stored* result = invocation.operand<Stored>(sum_);
  // Sums of blocks of rows are added up: fewer roundings in a row than rows.
  constexpr int64_t kRows = 64;
  invocation.pool.run((all + kColumns - 1) / kColumns, [&](int64_t item, int) {
    const int64_t column = item * kColumns, width = std::min(kColumns, all - column);
    float sums[kColumns] = {}, block[kColumns];
    for (int64_t begin = 0; begin < call_.k; begin += kRows) {
      load<T>(source + begin * row + column, block, width);
      for (int64_t i = begin + 1; i < std::min(begin + kRows, call_.k); ++i)
        add<T>(block, source + i * row + column, width);
      loops().add(sums, block, width);
    }
    store<T>(sums, result + column, width);
  });
}

void GemmEpilogue::sum(const Invocation& invocation) const {
  if (!call_.sums()) return;
  plan::visitElement<&plan::ElementFacts::products>(call_.type,
                                                    [&](auto element) { sumColumns<decltype(element)>(invocation); });
}

}  // namespace sheaf::cpu
