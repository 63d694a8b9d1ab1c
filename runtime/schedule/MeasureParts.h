// The parts of a measurement; see Measurement.h.
#pragma once

#include "runtime/schedule/Measurement.h"
#include "runtime/schedule/Profile.h"

namespace sheaf::schedule {

// What ranks with so many threads compute at while all cores are busy.
Expected<ComputeCost> measureCompute(Device& device, const MeasureOptions& options, int64_t threads);

// Every collective over so many ranks, which compute nothing meanwhile.
Expected<std::vector<LinkCost>> measureLinks(Device& device, const MeasureOptions& options, int64_t ranks);

// How much longer computation takes beside a collective, where cores are left for the collective's threads.
struct Slowdown {
  double value = 0;
  std::string source;
};
Expected<Slowdown> measureSlowdown(Device& device, const MeasureOptions& options);

}  // namespace sheaf::schedule
