// The dimensions of a strided copy (calls/Moves.h), and the form in which devices copy them.
#pragma once

#include <cstdint>
#include <vector>

namespace sheaf::plan {

struct CopyDimension {
  int64_t size = 0;
  int64_t source = 0;  // strides, in elements
  int64_t destination = 0;
};

// The dimensions without those of size one, ordered by their stride in the destination, outermost first; neighbours
// that are one run of elements on both sides are merged.
std::vector<CopyDimension> simplified(std::vector<CopyDimension> dimensions);

}  // namespace sheaf::plan
