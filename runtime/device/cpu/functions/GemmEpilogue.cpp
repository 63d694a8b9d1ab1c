#include "runtime/device/cpu/functions/GemmEpilogue.h"

#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

// Elements that are worked on at a time, in f32.
constexpr int64_t kColumns = 256;

void load(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, count * sizeof(float));
}
void load(const uint16_t* from, float* to, int64_t count) {
  loops().widen(from, to, count);
}
void store(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, count * sizeof(float));
}
void store(const float* from, uint16_t* to, int64_t count) {
  loops().narrow(from, to, count);
}
void add(float* sums, const float* from, int64_t count) {
  loops().add(sums, from, count);
}
void add(float* sums, const uint16_t* from, int64_t count) {
  loops().addHalf(sums, from, count);
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
  T* c = invocation.operand<T>(c_) + row * call_.ldc + column;
  float values[kColumns], others[kColumns];
  load(c, values, columns);
  if (call_.addsBias()) {
    load(invocation.operand<T>(bias_) + column, others, columns);
    loops().add(values, others, columns);
  }
  if (call_.appliesGelu()) {
    store(values, invocation.operand<T>(savedGeluInput_) + row * call_.n + column, columns);
    loops().gelu(values, columns);
  }
  if (geluInput_ >= 0) {
    load(invocation.operand<T>(geluInput_) + row * call_.n + column, others, columns);
    loops().geluGradient(others, values, columns);
  }
  store(values, c, columns);
}

void GemmEpilogue::finish(const Invocation& invocation, int64_t row, int64_t column, int64_t rows,
                          int64_t columns) const {
  if (call_.epilogue == plan::GemmEpilogue::kNone || call_.sums()) return;
  for (int64_t i = row; i < row + rows; ++i)
    for (int64_t j = column; j < column + columns; j += kColumns) {
      const int64_t width = std::min(kColumns, column + columns - j);
      call_.type == plan::BF16 ? finishRow<uint16_t>(invocation, i, j, width)
                               : finishRow<float>(invocation, i, j, width);
    }
}

template <typename T>
void GemmEpilogue::sumColumns(const Invocation& invocation) const {
  // Both a and b have a row for each of k.
  const bool ofA = call_.epilogue == plan::GemmEpilogue::kSumA;
  const T* source = invocation.operand<T>(ofA ? a_ : b_);
  const int64_t row = ofA ? call_.lda : call_.ldb, all = ofA ? call_.m : call_.n;
  T* result = invocation.operand<T>(sum_);
  // Sums of blocks of rows are added up: fewer roundings in a row than rows.
  constexpr int64_t kRows = 64;
  invocation.pool.run((all + kColumns - 1) / kColumns, [&](int64_t item, int) {
    const int64_t column = item * kColumns, width = std::min(kColumns, all - column);
    float sums[kColumns] = {}, block[kColumns];
    for (int64_t begin = 0; begin < call_.k; begin += kRows) {
      load(source + begin * row + column, block, width);
      for (int64_t i = begin + 1; i < std::min(begin + kRows, call_.k); ++i)
        add(block, source + i * row + column, width);
      loops().add(sums, block, width);
    }
    store(sums, result + column, width);
  });
}

void GemmEpilogue::sum(const Invocation& invocation) const {
  if (!call_.sums()) return;
  call_.type == plan::BF16 ? sumColumns<uint16_t>(invocation) : sumColumns<float>(invocation);
}

}  // namespace sheaf::cpu
