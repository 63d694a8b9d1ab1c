// A partition's claim of what a leaf has of a value of the batch.
#pragma once

#include "ir/Train/Place.h"

namespace sheaf::train {

// All of it; the part at a place; or a term, where the leaves' terms add up to it. `place.run` counts
// a leaf's elements.
struct Claim {
  enum Kind { Whole, Split, Partial } kind = Whole;
  Place place;
  bool operator==(const Claim& other) const { return kind == other.kind && (kind != Split || place == other.place); }
};

}  // namespace sheaf::train
