#include "runtime/plan/StridedCopy.h"

#include <algorithm>
#include <cstdlib>

namespace sheaf::plan {

std::vector<CopyDimension> simplified(std::vector<CopyDimension> dimensions) {
  std::erase_if(dimensions, [](const CopyDimension& d) { return d.size == 1; });
  std::stable_sort(dimensions.begin(), dimensions.end(), [](const CopyDimension& a, const CopyDimension& b) {
    return std::abs(a.destination) > std::abs(b.destination);
  });
  std::vector<CopyDimension> merged;
  for (const CopyDimension& d : dimensions) {
    if (!merged.empty() && merged.back().source == d.source * d.size &&
        merged.back().destination == d.destination * d.size)
      merged.back() = {merged.back().size * d.size, d.source, d.destination};
    else
      merged.push_back(d);
  }
  return merged;
}

}  // namespace sheaf::plan
