#include "runtime/measure/Measurement.h"

#include <algorithm>
#include <optional>

#include "runtime/base/Json.h"
#include "runtime/base/Text.h"
#include "runtime/comm/process/SubGroup.h"
#include "runtime/measure/MeasureDisk.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/measure/MeasuredCalls.h"
#include "runtime/plan/Types.h"

namespace sheaf::measure {
namespace {

// first, 2 first, 4 first, ... below last, and last.
std::vector<int64_t> doublings(int64_t first, int64_t last) {
  std::vector<int64_t> numbers;
  for (int64_t n = first; n < last; n *= 2) numbers.push_back(n);
  numbers.push_back(std::max(first, last));
  return numbers;
}

// A group of consecutive ranks that is measured together, while the other groups of the job do the same.
class Neighbours {
 public:
  Neighbours(const MeasureOptions& options, int64_t ranks, uint64_t arenaBytes)
      : set_{ranks, 1, options.processes, arenaBytes} {
    if (!options.processes || ranks == options.processes->size()) return;
    group_.emplace(*options.processes, ranks);
    set_.processes = &*group_;
  }
  Neighbours(const Neighbours&) = delete;
  const RankSet& set() const { return set_; }

 private:
  std::optional<comm::SubGroup> group_;
  RankSet set_;
};

}  // namespace

DeviceOptions deviceOptions(const MeasureOptions& options, const RankSet& set) {
  DeviceOptions device;
  device.ranks = set.ranks;
  device.threadsPerRank = set.threads;
  device.graphs = options.graphs;
  device.reduceOrder = options.reduceOrder;
  device.products = options.products;
  device.aborted = options.aborted;
  device.abandon = options.abandon;
  device.processes = set.processes;
  if (set.processes && set.ranks > 1) {
    device.firstRank = set.processes->rank();
    device.localRanks = 1;
    device.processesPerNode = std::min(set.ranks, options.ranksPerNode);
  }
  return device;
}

Expected<profile::Profile> measureMachine(Device& device, const MeasureOptions& options) {
  auto tell = [&](const std::string& what) {
    if (options.progress) options.progress(what);
  };
  profile::ProfileData data;
  data.name = options.name;
  data.description = cat("measured on ", options.machine);
  data.ranks = options.ranks;
  data.ranksPerNode = options.gpu ? options.ranksPerNode : plan::kMaxRanks;
  data.cores = options.gpu ? 0 : options.cores;
  data.memoryBytes = options.memoryBytes;
  data.memorySource = options.memorySource;
  bool direct = false;
  if (!options.disk.empty()) {
    tell(cat("the disk of ", options.disk));
    DiskOptions disk{options.disk};
    disk.checkInterrupt = options.checkInterrupt;
    Expected<DiskCosts> costs = measureDisk(disk);
    if (!costs.ok()) return costs.status();
    data.transfers = std::move(costs->transfers);
    data.persist = std::move(costs->persist);
    direct = costs->direct;
  }
  // Sets of ranks for computation: one on GPUs; on CPUs one for each number of threads per rank.
  std::vector<RankSet> sets;
  if (options.gpu) {
    Expected<RankSet> set = gpuRanks(device, options);
    if (!set.ok()) return set.status();
    sets.push_back(*set);
  } else {
    for (int64_t threads : options.threads > 0 ? std::vector{options.threads} : doublings(1, options.cores))
      sets.push_back({std::max<int64_t>(options.cores / threads, 1), static_cast<int>(threads), nullptr, kArenaBytes});
  }
  for (const RankSet& set : sets) {
    tell(options.gpu ? "computation"
                     : cat("computation with ", set.threads, set.threads == 1 ? " thread" : " threads", " a rank"));
    Expected<profile::ComputeCost> compute = measureCompute(device, options, set);
    if (!compute.ok()) return compute.status();
    if (options.gpu) SHEAF_RETURN_IF_ERROR(measureGemmEpilogues(device, options, set, *compute));
    data.compute.push_back(std::move(*compute));
  }
  if (!options.disk.empty())
    // Transfers share the memory that moves between places of it have to themselves; those have read and written it.
    for (size_t i = 0; i < sets.size() && !options.gpu; ++i)
      if (const double all = data.compute[i].moves.points.back().second * static_cast<double>(sets[i].ranks);
          all > data.hostBandwidth)
        data.hostBandwidth = all, data.hostSource = cat("measured: moves of ", sets[i].ranks, " ranks together");
  if (options.gpu) {
    tell("transfers between the GPU and the host");
    SHEAF_RETURN_IF_ERROR(measureTransfers(device, options, sets.front(), data));
    tell("updates on the host");
    SHEAF_RETURN_IF_ERROR(measureHostUpdates(options, data));
  } else if (!options.disk.empty()) {
    tell("files in a step");
    SHEAF_RETURN_IF_ERROR(measureFiles(device, options, sets.back(), direct, data));
    tell("computation while files move");
    for (size_t i = 0; i < sets.size(); ++i)
      SHEAF_RETURN_IF_ERROR(measureFileSlowdown(device, options, sets[i], data.compute[i]));
  }
  const uint64_t arenaBytes = sets.front().arenaBytes;
  auto links = [&](int64_t ranks, bool network) -> Status {
    tell(cat("collectives of ", ranks, " ranks", network ? " over the network" : ""));
    const Neighbours neighbours(options, ranks, arenaBytes);
    Expected<std::vector<profile::LinkCost>> links = measureLinks(device, options, neighbours.set(), network);
    if (!links.ok()) return links.status();
    data.links.insert(data.links.end(), links->begin(), links->end());
    return {};
  };
  const int64_t within = options.gpu ? std::min(options.ranks, options.ranksPerNode) : options.ranks;
  if (within > 1)
    for (int64_t ranks : doublings(2, within))
      if (!options.processes || within % ranks == 0) SHEAF_RETURN_IF_ERROR(links(ranks, false));
  if (options.ranks > within) SHEAF_RETURN_IF_ERROR(links(options.ranks, true));
  tell("computation during collectives");
  const Neighbours overlapping(options, options.gpu && within > 1 ? within : options.ranks, arenaBytes);
  Expected<Slowdown> slowdown = measureSlowdown(device, options, overlapping.set());
  if (!slowdown.ok()) return slowdown.status();
  data.slowdown = slowdown->value;
  data.slowdownSource = slowdown->source;
  return profile::Profile(std::move(data));
}

Expected<std::string> measureProfile(Device& device, const MeasureOptions& options) {
  Expected<profile::Profile> profile = measureMachine(device, options);
  if (!profile.ok()) return profile.status();
  return json::write(profile->toJson(), 1) + "\n";
}

}  // namespace sheaf::measure
