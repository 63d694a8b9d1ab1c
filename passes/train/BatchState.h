// What a value of one rank's step is to the global one, for the analysis of Globalizer.h.
#pragma once

#include <cstdint>
#include <optional>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/Support/LLVM.h"

namespace sheaf::train {

// The same on all ranks, this rank's rows of the global value, or this rank's term of a sum.
struct BatchState {
  enum Kind { Replicated, Split, Partial } kind = Replicated;
  // A split value, or one whose sum over the ranks is split, has the batch in a dimension of (something x rows x minor)
  // elements: `rows` are this rank's, and `minor` elements lie within one row. There are several dimensions where a
  // graph is fixed to one row: a reshape may leave dimensions of size 1, any of which may be the batch.
  mlir::SmallVector<int64_t, 1> dimensions;
  int64_t rows = 0, minor = 1;
  // All elements along the dimension are equal, so that any of them may be a row's.
  bool uniform = false;

  static BatchState split(mlir::ArrayRef<int64_t> dimensions, int64_t rows, int64_t minor = 1) {
    return {Split, mlir::SmallVector<int64_t, 1>(dimensions), rows, minor};
  }
  static BatchState partial() { return {Partial, {}}; }
  bool isSplit() const { return kind == Split; }
  bool isPartial() const { return kind == Partial; }
  bool mayBe(int64_t dimension) const { return llvm::is_contained(dimensions, dimension); }
  bool is(int64_t dimension) const { return mayBe(dimension) && dimensions.size() == 1; }

  // The same value elsewhere: move(dimension) says where a dimension has gone.
  template <class Move>
  BatchState moved(Move move) const {
    BatchState result = *this;
    for (int64_t& d : result.dimensions) d = move(d);
    return result;
  }
  // What this and `other`, whose rows meet, both may be; nothing if they carry the batch in different ways.
  std::optional<BatchState> meet(const BatchState& other) const {
    if (uniform != other.uniform && dimensions == other.dimensions) return uniform ? other : *this;
    if (rows != other.rows || minor != other.minor) return std::nullopt;
    BatchState both = *this;
    llvm::erase_if(both.dimensions, [&](int64_t d) { return !other.mayBe(d); });
    return both.dimensions.empty() ? std::nullopt : std::optional(both);
  }
};

}  // namespace sheaf::train
