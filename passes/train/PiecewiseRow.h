// A row of numbers as pieces that are straight lines: a row of a causal mask has two, however many its columns.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace sheaf::train {

// Column j of [begin, end) is value + slope * j; the piece begins where the one before ends.
struct Piece {
  int64_t end;
  double value, slope;

  double at(int64_t column) const { return slope == 0 ? value : value + slope * double(column); }
};

class PiecewiseRow {
 public:
  const std::vector<Piece>& pieces() const { return all; }

  void clear() { all.clear(); }
  // Extends the row to `end`; a piece like the last one becomes part of it.
  void append(int64_t end, double value, double slope = 0);
  // Extends the row by one column, which becomes part of the last piece if it lies on its line; with `slopes` a piece
  // of one column, too, has one.
  void push(double value, bool slopes);

 private:
  std::vector<Piece> all;
};

// Calls visit(begin, end, {the rows' pieces there}) over whole rows of one length, from left to right.
template <size_t N, class Visit>
void zip(const std::array<const PiecewiseRow*, N>& rows, Visit visit) {
  std::array<size_t, N> at{};
  for (int64_t begin = 0; at[0] < rows[0]->pieces().size();) {
    std::array<const Piece*, N> pieces;
    for (size_t k = 0; k < N; ++k) pieces[k] = &rows[k]->pieces()[at[k]];
    int64_t end = pieces[0]->end;
    for (const Piece* piece : pieces) end = std::min(end, piece->end);
    visit(begin, end, pieces);
    for (size_t k = 0; k < N; ++k) at[k] += pieces[k]->end == end;
    begin = end;
  }
}

// The first column of [begin, end) from which on f holds, which then holds to the end; `end` if it never does.
template <class Predicate>
int64_t firstFrom(int64_t begin, int64_t end, Predicate f) {
  while (begin < end) {
    int64_t middle = begin + (end - begin) / 2;
    if (f(middle))
      end = middle;
    else
      begin = middle + 1;
  }
  return begin;
}

}  // namespace sheaf::train
