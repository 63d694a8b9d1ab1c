// How the elements of a row program are shared out to the threads of a GPU.
#pragma once

#include "codegen/fusion/RowProgram.h"

namespace sheaf::codegen {

// The threads of a block form `groups` of `perRow` threads; each group does one row at a time. What a group has of a
// row (all of it, or one of `tiles` parts, each another thread block's) is cut into vectors of `lanes` elements. A
// thread takes vectors perRow apart, `chunks` of them at once: all it has of the row if there is one round, so that
// the row is read once and stays in registers over all passes; else it makes several rounds in each pass.
//
// Row reductions need a row in one block: tiles is 1. With column partials a block does the `block` rows of the program
// that share a row of partial sums, one after the other; else it does one row for each group. A flat program is one
// row of all whole vectors, in tiles of one round; the elements after them belong to the first block.
struct Mapping {
  int64_t lanes = 1;
  int64_t perRow = 1, groups = 1;  // powers of two; their product is a multiple of 32
  int64_t chunks = 1, rounds = 1, tiles = 1;
  int64_t grid = 1;  // thread blocks

  int64_t threads() const { return perRow * groups; }
  // Elements that a group takes at once.
  int64_t span() const { return perRow * lanes * chunks; }
};

// `pressure`: how often a mapping of the program needed more registers than there are. The higher it is, the fewer
// elements a thread holds.
Mapping chooseMapping(const RowProgram& program, int pressure);
// A pressure at which a mapping cannot be relieved any further.
inline constexpr int kMostPressure = 4;

// Whether a result with one element a row may share memory with an operand that threads of other columns read.
bool mayOverwriteRowOperand(const RowProgram& program);

}  // namespace sheaf::codegen
