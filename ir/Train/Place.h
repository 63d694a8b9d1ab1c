// The place of the parts of a value that is divided among leaves, or, in the importer, of the rows of the batch.
#pragma once

#include <cstdint>
#include <optional>

#include "llvm/ADT/ArrayRef.h"

namespace sheaf::train {

// Dimension `dimension` of the global value is (outer x parts x run) elements, and part p has the elements p of every
// outer block. Of [3, 8] with the batch in dimension 1 and 4 parts it is {1, 2}.
struct Place {
  int64_t dimension = 0, run = 0;
  bool operator==(const Place&) const = default;
};

// Gives the place of the parts after a reshape, or nothing where a part is no longer such a range. A reshape keeps the
// order of elements, so the parts stay as far apart as they were, and of several parts at most one dimension spans that
// distance. A single part may be in several; it is in one that has as many elements before it, if there is one.
std::optional<Place> reshapedPlace(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to, Place place,
                                   int64_t parts);

// Gives the place in `dimension` of a value of shape `to` that an op computes from, or together with, one of shape
// `from` along the dimension of `place`: as many blocks, whose parts are larger or smaller by the same factor. Nothing
// if no whole parts fit.
std::optional<Place> placeAlong(llvm::ArrayRef<int64_t> from, Place place, llvm::ArrayRef<int64_t> to,
                                int64_t dimension, int64_t parts);

// True if a slice along the dimension of `place` takes whole blocks, each with all parts.
bool takesWholeBlocks(int64_t start, int64_t size, int64_t step, Place place, int64_t parts);

}  // namespace sheaf::train
