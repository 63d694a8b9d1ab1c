// Which computation may run beside which transfer, and what it costs that some may not.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "passes/schedule/Timeline.h"

namespace sheaf::schedule {

class OverlapBound {
 public:
  // `order`: what must precede what whatever the schedule. `excluded(transfer, computation)`: pairs that may not run at
  // once for another reason.
  using Excluded = std::function<bool(uint32_t transfer, uint32_t computation)>;
  OverlapBound(const Loop& loop, std::span<const Dependence> order, const Excluded& excluded);

  // Seconds of a round, at least: some transfers one after the other, the computation that can run beside none of them,
  // and what the other transfers take from it by slowing it down. Every set of transfers gives a bound; this is the
  // best that was found.
  double serialSeconds() const;

 private:
  const Loop& loop_;
  std::vector<uint32_t> transfers_, computations_;
  std::vector<std::vector<uint32_t>> beside_;  // by place in transfers_: places in computations_
};

}  // namespace sheaf::schedule
