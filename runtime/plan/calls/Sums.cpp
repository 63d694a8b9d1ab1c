#include "runtime/plan/calls/Sums.h"

#include "runtime/plan/Tiles.h"

namespace sheaf::plan {

uint64_t SquareSumCall::deviceScratch() const {
  const int64_t blocks = saturatingAdd(n, kSquareSumBlock - 1) / kSquareSumBlock;
  return static_cast<uint64_t>(saturatingMultiply(blocks, sizeof(double)));
}

}  // namespace sheaf::plan
