// Which buffers wait for their next use outside the device, in which stretches of a step, and in which space: those
// whose transfers take the fewest predicted seconds for each byte that they free where too many bytes are alive.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/plan.pb.h"
#include "runtime/profile/Profile.h"

namespace sheaf::schedule {

// A stretch between uses of a buffer, in which it may be in another space.
struct Gap {
  std::vector<std::pair<uint32_t, uint32_t>> spans;  // positions [begin, end) at which the device then does not hold it
  double fetches = 0, stores = 0;                    // transfers that this adds to a step
  double between = 0;                                // seconds of computation that each of them can hide under
};

// A buffer that may be moved.
struct Movable {
  uint64_t bytes = 0;
  // The first gap of what persists is that between steps: without it there are no others.
  bool persistent = false;
  std::vector<Gap> gaps;
  // Of state that is updated on the host if it moves: seconds that this takes. What its gap adds are then transfers of
  // gradients and parameters between device and host; in files it is itself read and written once besides.
  double updateSeconds = 0;
};

struct PlacementProblem {
  std::vector<uint64_t> live;  // by position: bytes of the device that are alive if nothing is moved
  std::vector<Movable> movables;
  double computeSeconds = 0;   // of a step
  uint64_t deviceBytes = 0;    // what is to be alive at most
  uint64_t hostBytes = ~0ull;  // what may be moved to host memory; the rest goes to files
};

struct Placed {
  plan::Buffer::Space space = plan::Buffer::DEVICE;
  std::vector<bool> gaps;  // by gap of the movable: whether it is in the space meanwhile
};

struct Placement {
  std::vector<Placed> placed;  // by movable
  uint64_t bytes = 0;          // alive at most, above deviceBytes if no placement reaches that
};

Placement choosePlacement(const PlacementProblem& problem, const profile::Profile& profile);

}  // namespace sheaf::schedule
