#include "passes/schedule/Floor.h"

#include <algorithm>

namespace sheaf::schedule {
namespace {

// Work without a rate takes no time in this machine model.
double secondsAt(double work, double rate) {
  return rate > 0 ? work / rate : 0;
}

}  // namespace

const char* floorByName(FloorBy by) {
  static const char* const kNames[] = {"products", "state", "communication"};
  return kNames[static_cast<int>(by)];
}

std::optional<Floor> floorOf(const plan::Plan& plan, const profile::Profile& profile) {
  if (!plan.has_floor()) return std::nullopt;
  const plan::StepWork& work = plan.floor();
  const double ranks = static_cast<double>(profile.ranks());
  Floor floor;
  for (const plan::ProductFlops& products : work.products())
    floor.products +=
        secondsAt(static_cast<double>(products.flops()), profile.bestProductRate(products.type(), products.tf32()));
  const double share = plan.zero_stage() >= 1 ? static_cast<double>(plan.ranks()) / ranks : 1;
  floor.state = secondsAt(static_cast<double>(work.state_bytes()) * share, profile.bestMemoryBandwidth());
  const double exchanged = static_cast<double>(work.reduced_bytes()) + static_cast<double>(work.gathered_bytes());
  floor.communication = secondsAt(exchanged * (ranks - 1) / ranks, profile.bestLinkBandwidth(profile.ranks()));
  floor.seconds = floor.products;
  if (floor.state > floor.seconds) floor.seconds = floor.state, floor.by = FloorBy::kState;
  if (floor.communication > floor.seconds) floor.seconds = floor.communication, floor.by = FloorBy::kCommunication;
  return floor;
}

}  // namespace sheaf::schedule
