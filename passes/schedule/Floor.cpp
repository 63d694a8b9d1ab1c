#include "passes/schedule/Floor.h"

#include <algorithm>

#include "runtime/plan/Types.h"

namespace sheaf::schedule {
namespace {

// Work without a rate takes no time in this machine model.
double secondsAt(double work, double rate) {
  return rate > 0 ? work / rate : 0;
}

// What a rank receives on average, (ranks - 1) / ranks of what is exchanged, by the link within nodes and by its part
// of the node's network; and what a node receives from the others, by its network alone.
double communicationSeconds(const plan::Plan& plan, const profile::Profile& profile) {
  const plan::StepWork& work = plan.floor();
  const double ranks = static_cast<double>(profile.ranks()), reduced = static_cast<double>(work.reduced_bytes());
  const double exchanged = reduced + static_cast<double>(work.gathered_bytes());
  const double received = exchanged * (ranks - 1) / ranks;
  if (profile.nodes(profile.ranks()) == 1) return secondsAt(received, profile.bestLinkBandwidth(profile.ranks()));
  const double node = static_cast<double>(profile.ranksPerNode()), network = profile.bestNetworkBandwidth();
  const double within = profile.ranksPerNode() > 1 ? profile.bestLinkBandwidth(profile.ranksPerNode()) : 0;
  // What is gathered between nodes is not stated where they shard less than their ranks: it is left out.
  const bool uniform = plan.ranks_per_node() == 0 || plan.network_stage() == plan.zero_stage();
  const double between = (uniform ? exchanged : reduced) * (ranks - node) / ranks;
  return std::max(secondsAt(received, within + network / node), secondsAt(between, network));
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
  const bool sharded = plan::partsFrom(plan, 1) == plan.ranks() && plan.zero_stage() >= 1;
  const double share = sharded ? static_cast<double>(plan.ranks()) / ranks : 1;
  // Updates on the host have its memory besides that of the device.
  const double sharing = static_cast<double>(std::min(profile.ranks(), profile.ranksPerNode()));
  const double host = plan::updatesOnHost(plan) && profile.isOfGpus() ? profile.hostBandwidth() / sharing : 0;
  floor.state = secondsAt(static_cast<double>(work.state_bytes()) * share, profile.bestMemoryBandwidth() + host);
  floor.communication = ranks > 1 ? communicationSeconds(plan, profile) : 0;
  floor.seconds = floor.products;
  if (floor.state > floor.seconds) floor.seconds = floor.state, floor.by = FloorBy::kState;
  if (floor.communication > floor.seconds) floor.seconds = floor.communication, floor.by = FloorBy::kCommunication;
  return floor;
}

}  // namespace sheaf::schedule
