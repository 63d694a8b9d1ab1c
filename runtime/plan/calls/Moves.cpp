#include "runtime/plan/calls/Moves.h"

#include <cstdlib>

#include "runtime/base/Text.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::plan {
namespace {

// Elements from the first place of a dimension to its last.
int64_t reach(const CopyDimension& d, int64_t stride) {
  return saturatingMultiply(d.size - 1, std::abs(stride));
}

}  // namespace

uint64_t ScatterAddCall::scratchPerThread() const {
  return isWidened(type) ? scratchOfFloats(count) : 0;
}

uint64_t ScatterAddCall::deviceScratch() const {
  return static_cast<uint64_t>(scatterScratch(rows, count).bytes);
}

int64_t CopyCall::sourceElements() const {
  int64_t highest = sourceOffset;
  for (const CopyDimension& d : dimensions)
    if (d.source > 0) highest = saturatingAdd(highest, reach(d, d.source));
  return saturatingAdd(highest, 1);
}

int64_t CopyCall::destinationElements() const {
  int64_t last = 0;
  for (const CopyDimension& d : dimensions) last = saturatingAdd(last, reach(d, d.destination));
  return saturatingAdd(last, 1);
}

Runs CopyCall::destinationRuns() const {
  if (zero) return {{}, kWhole};
  Runs runs{{}, 1};
  for (const CopyDimension& d : dimensions) runs.dimensions.push_back({d.size, d.destination});
  return runs;
}

Status RandomShape::check() const {
  if (count % blocks != 0) return Status::error(cat("its ", count, " elements do not divide into ", blocks, " blocks"));
  if (whole && blocks != 1) return Status::error("a whole value has one block");
  return Status();
}

Status CopyCall::check() const {
  int64_t below = 0;
  std::vector<CopyDimension> moving;
  for (const CopyDimension& d : dimensions) {
    if (d.size == 1) continue;
    if (d.destination < 1)
      return Status::error(cat("a destination stride is ", d.destination, ", but must be at least 1"));
    if (d.source < 0) below = saturatingAdd(below, reach(d, d.source));
    moving.push_back(d);
  }
  if (below > sourceOffset)
    return Status::error(cat("its source begins ", below - sourceOffset, " elements before its operand"));
  // Threads write disjoint elements only if no two index tuples meet in the destination.
  std::sort(moving.begin(), moving.end(),
            [](const CopyDimension& a, const CopyDimension& b) { return a.destination < b.destination; });
  int64_t covered = 0;
  for (const CopyDimension& d : moving) {
    if (d.destination <= covered) return Status::error("two of its elements have the same place in the destination");
    covered = saturatingAdd(covered, reach(d, d.destination));
  }
  return Status();
}

}  // namespace sheaf::plan
