// The bytes that a plan's step must move between memory and the last-level cache.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/plan.pb.h"

namespace sheaf::bench {

// Of each instruction of the body, in order, of one rank: what it reads that is not in the cache, and what it writes
// that does not stay there until it is overwritten. The cache holds `cacheBytes` and always evicts what is needed
// latest, which no real one does better (Belady, "A study of replacement algorithms for a virtual-storage computer",
// 1966).
std::vector<double> memoryTraffic(const plan::Plan& plan, uint64_t cacheBytes);

}  // namespace sheaf::bench
