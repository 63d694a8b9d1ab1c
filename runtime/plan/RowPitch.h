// How far apart the rows of a matrix in memory start.
#pragma once

#include <cstdint>

namespace sheaf::plan {

// Elements from one row to the next of a matrix that is free to choose. Rows of a whole number of vectors (16 bytes:
// what a GPU moves at a time, and what its matrix products ask of rows) stay dense. Any others are padded to whole
// cache lines of a GPU (128 bytes, and two of a CPU), so that every row starts like the first and no line holds parts
// of two; where that takes more than a thirty-second of the row, to half or a quarter of that, at least to whole
// vectors; and where even those take more, not at all.
inline int64_t rowPitch(int64_t columns, int64_t elementBytes) {
  constexpr int64_t kVector = 16, kLine = 128, kShare = 32;
  const int64_t row = columns * elementBytes;
  if (row % kVector == 0 || row > INT64_MAX - kLine) return columns;
  for (int64_t unit = kLine; unit >= kVector; unit /= 2) {
    const int64_t pitch = (row + unit - 1) / unit * unit;
    if (pitch - row <= row / kShare) return pitch / elementBytes;
  }
  return columns;
}

}  // namespace sheaf::plan
