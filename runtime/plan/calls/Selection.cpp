#include "runtime/plan/calls/Selection.h"

#include "runtime/base/Text.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::plan {
namespace {

// What the indices name, of entries and elements that have indices of their own.
int64_t ownPlaces(const ScatterCall& c) {
  return product({c.indexOuter ? c.outer : 1, c.rows, c.indexInner ? c.inner : 1});
}

// "f32, f64, i32 or i64"
std::string arithmeticTypes() {
  std::string text;
  for (size_t i = 0; i < kArithmeticTypes.size(); ++i)
    text += cat(i == 0 ? "" : i + 1 == kArithmeticTypes.size() ? " or " : ", ", kArithmeticTypes[i].name);
  return text;
}

// A GPU numbers indices, and the places that they name, in 32 bits.
constexpr int64_t kMostIndices = UINT32_MAX - 1;

}  // namespace

Status ScatterCall::check() const {
  if (kind != ScatterKind::kReplace && !factsOf(type).arithmetic)
    return Status::error(cat("only elements of type ", arithmeticTypes(), " can be combined with updates"));
  if (indexCount(*this) > kMostIndices || ownPlaces(*this) > kMostIndices)
    return Status::error("it has more than 2^32 indices or places that they name");
  return Status();
}

uint64_t ScatterCall::deviceScratch() const {
  const int64_t places = std::min(ownPlaces(*this), kMostIndices), indices = std::min(indexCount(*this), kMostIndices);
  return static_cast<uint64_t>(scatterScratch(places, indices).bytes);
}

Status TopKCall::check() const {
  if (k > n) return Status::error(cat("it takes ", k, " of ", n, " elements"));
  return Status();
}

uint64_t TopKCall::scratchPerThread() const {
  if (k == 1) return 0;
  // A key and an index; of 32 bits each where the elements are.
  return scratchOfFloats(saturatingMultiply(n, elementBytes(type) == 4 ? 2 : 4));
}

uint64_t TopKCall::deviceScratch() const {
  if (k <= kTopKScans) return 0;
  return static_cast<uint64_t>(scatterScratch(0, product({topKLines(product({outer, inner}), n), n})).bytes);
}

}  // namespace sheaf::plan
