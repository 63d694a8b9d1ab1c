// A lower bound on the period from computation and transfers that cannot overlap.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "passes/schedule/Timeline.h"

namespace sheaf::schedule {

class OverlapBound {
 public:
  // `order`: dependences that every schedule respects. `excluded(transfer, computation)`: further pairs that cannot
  // overlap. `counts`: the units of the transfers that are looked at, which must all share one link;
  // `slowdown`: the least that each of them costs computation, as in Loop.
  using Excluded = std::function<bool(uint32_t transfer, uint32_t computation)>;
  OverlapBound(const Loop& loop, std::span<const Dependence> order, const Excluded& excluded, bool (*counts)(Unit),
               double slowdown);

  // Seconds of a round: the sum of a set of transfers, the computation that can overlap with none of them, and what the
  // other transfers take from it by the slowdown. Every set gives a bound; this is the largest that was found.
  double serialSeconds() const;

 private:
  const Loop& loop_;
  const double slowdown_;
  std::vector<uint32_t> transfers_, computations_;
  std::vector<std::vector<uint32_t>> overlaps_;  // by index in transfers_: indices in computations_
};

}  // namespace sheaf::schedule
