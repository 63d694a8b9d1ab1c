// The steps of measureMachine (Measurement.h).
#pragma once

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

// How much a collective slows down computation that runs at the same time; on CPUs, with cores left for the
// collective's threads.
struct Slowdown {
  double value = 0;
  std::string source;
};
Expected<Slowdown> measureSlowdown(Device& device, const MeasureOptions& options, const RankSet& set);

}  // namespace sheaf::measure
