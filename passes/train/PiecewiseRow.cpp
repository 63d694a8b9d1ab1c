#include "passes/train/PiecewiseRow.h"

#include <bit>

namespace sheaf::train {

// A NaN is one value, and the zeros are two.
static bool same(double x, double y) {
  return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
}

void PiecewiseRow::append(int64_t end, double value, double slope) {
  if (!all.empty() && same(all.back().value, value) && all.back().slope == slope)
    all.back().end = end;
  else
    all.push_back({end, value, slope});
}

void PiecewiseRow::push(double value, bool slopes) {
  int64_t column = all.empty() ? 0 : all.back().end;
  if (!all.empty()) {
    Piece& last = all.back();
    int64_t begin = all.size() > 1 ? all[all.size() - 2].end : 0;
    if (slopes && last.end - begin == 1) {
      double slope = value - last.value;
      last = {column + 1, last.value - slope * double(begin), slope};
      return;
    }
    if (same(last.at(column), value)) {
      ++last.end;
      return;
    }
  }
  all.push_back({column + 1, value, 0});
}

}  // namespace sheaf::train
