#include "ir/Train/Place.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace sheaf::train {

static int64_t product(llvm::ArrayRef<int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::optional<Place> reshapedPlace(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to, Place place,
                                   int64_t parts) {
  if (product(from) == 0) return std::nullopt;
  const int64_t apart = place.run * product(from.drop_front(size_t(place.dimension) + 1));
  const int64_t before = product(from.take_front(size_t(place.dimension)));
  std::optional<Place> found;
  int64_t inner = product(to), outer = 1;
  for (size_t d = 0; d < to.size(); ++d) {
    inner /= to[d];
    const bool spans = apart % inner == 0 && to[d] % (apart / inner * parts) == 0;
    if (spans && (!found || outer == before)) found = Place{int64_t(d), apart / inner};
    if (found && (parts > 1 || outer == before)) break;
    outer *= to[d];
  }
  return found;
}

std::optional<Place> placeAlong(llvm::ArrayRef<int64_t> from, Place place, llvm::ArrayRef<int64_t> to,
                                int64_t dimension, int64_t parts) {
  const int64_t before = from[size_t(place.dimension)], after = to[size_t(dimension)];
  if (before == 0 || place.run * after % before || after == 0) return std::nullopt;
  const int64_t run = place.run * after / before;
  if (run == 0 || after % (run * parts)) return std::nullopt;
  return Place{dimension, run};
}

bool takesWholeBlocks(int64_t start, int64_t size, int64_t step, Place place, int64_t parts) {
  const int64_t block = place.run * parts;
  return step == 1 && start % block == 0 && size % block == 0 && size > 0;
}

}  // namespace sheaf::train
