#include "runtime/device/cpu/functions/GemmEpilogue.h"

#include <algorithm>
#include <cstring>

#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

using plan::Epilogue;

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

bool hasSide(Epilogue kind) {
  return kind == Epilogue::kBias || kind == Epilogue::kBiasGelu || kind == Epilogue::kGeluGrad;
}

}  // namespace

GemmEpilogue::GemmEpilogue(const plan::LibraryCall& call)
    : kind_(plan::epilogue(call)),
      half_(plan::elementType(call) == plan::BF16),
      result_(hasSide(kind_) ? 3 : 2),
      n_(plan::integer(call, "n")),
      k_(plan::integer(call, "k")),
      ldc_(plan::integer(call, "ldc")),
      summed_(plan::integer(call, kind_ == Epilogue::kSumA ? "m" : "n")),
      summedRow_(plan::integer(call, kind_ == Epilogue::kSumA ? "lda" : "ldb")) {}

template <typename T>
void GemmEpilogue::finishRow(const Invocation& invocation, int64_t row, int64_t column, int64_t columns) const {
  T* c = invocation.operand<T>(result_) + row * ldc_ + column;
  const T* side = hasSide(kind_) ? invocation.operand<T>(2) : nullptr;
  float values[kColumns], beside[kColumns];
  load(c, values, columns);
  if (kind_ == Epilogue::kBias || kind_ == Epilogue::kBiasGelu) {
    load(side + column, beside, columns);
    loops().add(values, beside, columns);
  }
  if (kind_ == Epilogue::kGelu || kind_ == Epilogue::kBiasGelu) {
    store(values, invocation.operand<T>(result_ + 1) + row * n_ + column, columns);
    loops().gelu(values, columns);
  }
  if (kind_ == Epilogue::kGeluGrad) {
    load(side + row * n_ + column, beside, columns);
    loops().geluGradient(beside, values, columns);
  }
  store(values, c, columns);
}

void GemmEpilogue::finish(const Invocation& invocation, int64_t row, int64_t column, int64_t rows,
                          int64_t columns) const {
  if (kind_ == Epilogue::kNone || kind_ == Epilogue::kSumA || kind_ == Epilogue::kSumB) return;
  for (int64_t i = row; i < row + rows; ++i)
    for (int64_t j = column; j < column + columns; j += kColumns) {
      const int64_t width = std::min(kColumns, column + columns - j);
      half_ ? finishRow<uint16_t>(invocation, i, j, width) : finishRow<float>(invocation, i, j, width);
    }
}

template <typename T>
void GemmEpilogue::sumColumns(const Invocation& invocation) const {
  const T* source = invocation.operand<T>(kind_ == Epilogue::kSumA ? 0 : 1);
  T* result = invocation.operand<T>(3);
  // Sums of blocks of rows are added up: fewer roundings in a row than rows.
  constexpr int64_t kRows = 64;
  invocation.pool.run((summed_ + kColumns - 1) / kColumns, [&](int64_t item, int) {
    const int64_t column = item * kColumns, width = std::min(kColumns, summed_ - column);
    float sums[kColumns] = {}, block[kColumns];
    for (int64_t begin = 0; begin < k_; begin += kRows) {
      load(source + begin * summedRow_ + column, block, width);
      for (int64_t row = begin + 1; row < std::min(begin + kRows, k_); ++row)
        add(block, source + row * summedRow_ + column, width);
      loops().add(sums, block, width);
    }
    store(sums, result + column, width);
  });
}

void GemmEpilogue::sum(const Invocation& invocation) const {
  if (kind_ != Epilogue::kSumA && kind_ != Epilogue::kSumB) return;
  half_ ? sumColumns<uint16_t>(invocation) : sumColumns<float>(invocation);
}

}  // namespace sheaf::cpu
