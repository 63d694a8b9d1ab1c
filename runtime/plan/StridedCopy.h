// The dimensions of a "copy" (Library.h), brought into the form in which devices copy them.
#pragma once

#include <cstdint>
#include <vector>

namespace sheaf::plan {

class LibraryCall;

struct CopyDimension {
  int64_t size;
  int64_t source;  // strides, in elements
  int64_t destination;
};

// The dimensions of the call without those of size one, ordered by their stride in the destination, outermost first;
// neighbours that are one run of elements on both sides are merged.
std::vector<CopyDimension> copyDimensions(const LibraryCall& call);

}  // namespace sheaf::plan
