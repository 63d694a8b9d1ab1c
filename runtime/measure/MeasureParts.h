// The steps of measureMachine (Measurement.h).
#pragma once

#include <span>
#include <utility>

#include "runtime/measure/Measurement.h"
#include "runtime/profile/Profile.h"

namespace sheaf::measure {

// Ranks that are measured together, and how the device is opened for them.
struct RankSet {
  int64_t ranks = 1;
  int threads = 1;
  // The processes of the ranks, one GPU each; null if all ranks are in this process.
  comm::ProcessGroup* processes = nullptr;
  uint64_t arenaBytes = 0;  // of each rank; on CPUs each measurement sets its own
};
DeviceOptions deviceOptions(const MeasureOptions& options, const RankSet& set);

// Instructions that take longer than this on a GPU are not measured but extrapolated, so that a measurement takes about
// a minute on fast and slow devices alike.
inline constexpr double kLongestSeconds = 15e-3;

// For work of increasing size: whether the next size would still take at most kLongestSeconds, by the last one's time.
class SizeLimit {
 public:
  explicit SizeLimit(bool limited) : limited_(limited) {}
  bool allows(double work) const { return !limited_ || measured_ < 2 || seconds_ * work / work_ <= kLongestSeconds; }
  void record(double work, double seconds) { work_ = work, seconds_ = seconds, ++measured_; }

 private:
  const bool limited_;
  int measured_ = 0;
  double work_ = 1, seconds_ = 0;
};

// The ranks of this process, each with an arena that its GPU can read in a reasonable time.
Expected<RankSet> gpuRanks(Device& device, const MeasureOptions& options);

// Compute costs, measured on all these ranks at once.
Expected<profile::ComputeCost> measureCompute(Device& device, const MeasureOptions& options, const RankSet& set);

// Measures the bandwidth of GEMM epilogues on a GPU and stores it in `cost`.
Status measureGemmEpilogues(Device& device, const MeasureOptions& options, const RankSet& set,
                            profile::ComputeCost& cost);

// Costs of every collective over these ranks, without concurrent computation. `network`: the ranks span several nodes.
Expected<std::vector<profile::LinkCost>> measureLinks(Device& device, const MeasureOptions& options, const RankSet& set,
                                                      bool network);

// The cost of transfers of which (bytes, seconds) have been measured, at least two of them by increasing size. The
// smallest is what every transfer takes besides its bytes.
profile::TransferCost transferCost(plan::Transfer::Kind kind, std::span<const std::pair<double, double>> taken);

// Costs of to_device and to_host on GPUs, and the bandwidth of the host's memory that they show, while all these ranks
// and the node's others transfer: stored in `data`.
Status measureTransfers(Device& device, const MeasureOptions& options, const RankSet& set, profile::ProfileData& data);

// What transfers of files take in a step of CPU ranks beyond what the disk takes for one request after the other, added
// to read_file and write_file in `data`: latencies, as threads wake each other (`whole`: one rank with all cores, each
// of whose threads is waited for), and what all ranks move at once. Files lie in a new folder in `options.disk`, which
// is removed. `direct`: they bypass the page cache; otherwise ranks are taken to share the disk evenly.
Status measureFiles(Device& device, const MeasureOptions& options, const RankSet& whole, bool direct,
                    profile::ProfileData& data);

// How much reads and writes by all these ranks slow down their computation: stored in `cost`. Files as above.
Status measureFileSlowdown(Device& device, const MeasureOptions& options, const RankSet& set,
                           profile::ComputeCost& cost);

// Elements a second that the processors of a node update by Adam in host memory, and the bandwidth of that, while the
// other processes of the node do the same: stored in `data`.
Status measureHostUpdates(const MeasureOptions& options, profile::ProfileData& data);

// How much a collective slows down computation that runs at the same time; on CPUs, with cores left for the
// collective's threads.
struct Slowdown {
  double value = 0;
  std::string source;
};
// Of seconds that computation and transfers take alone and at the same time: what transfers divide the rate of
// computation by while they run, less 1. 0 if both together take no longer than one.
double slowdownOf(double computing, double transferring, double both);
Expected<Slowdown> measureSlowdown(Device& device, const MeasureOptions& options, const RankSet& set);

}  // namespace sheaf::measure
