// The parts of a measurement; see Measurement.h.
#pragma once

#include "runtime/measure/Measurement.h"
#include "runtime/profile/Profile.h"

namespace sheaf::measure {

// Ranks that are measured together, and how their timers open them.
struct RankSet {
  int64_t ranks = 1;
  int threads = 1;
  // GPUs in processes of their own: which processes these are; null where all ranks are in this one.
  comm::ProcessGroup* processes = nullptr;
  uint64_t arenaBytes = 0;  // of each rank; on CPUs what is measured says it
};
DeviceOptions deviceOptions(const MeasureOptions& options, const RankSet& set);

// What a GPU takes longer for than this is left to be extrapolated, so that a measurement takes about a minute on a
// fast device and on a slow one.
inline constexpr double kLongest = 15e-3;

// Says of work by increasing size whether a device that took so long for the sizes before is to be asked for it.
class Reach {
 public:
  explicit Reach(bool limited) : limited_(limited) {}
  bool takes(double work) const { return !limited_ || taken_ < 2 || seconds_ * work / work_ <= kLongest; }
  void took(double work, double seconds) { work_ = work, seconds_ = seconds, ++taken_; }

 private:
  const bool limited_;
  int taken_ = 0;
  double work_ = 1, seconds_ = 0;
};

// The ranks of this process, all of them if it is the only one, each with an arena that their GPU can cycle through in
// a reasonable time.
Expected<RankSet> gpuRanks(Device& device, const MeasureOptions& options);

// What these ranks compute at, all at once.
Expected<profile::ComputeCost> measureCompute(Device& device, const MeasureOptions& options, const RankSet& set);

// Bytes a second of what epilogues of products move on GPUs, into `cost`.
Status measureEpilogues(Device& device, const MeasureOptions& options, const RankSet& set, profile::ComputeCost& cost);

// Every collective over these ranks, which compute nothing meanwhile. With `network` they are on several nodes.
Expected<std::vector<profile::LinkCost>> measureLinks(Device& device, const MeasureOptions& options, const RankSet& set,
                                                      bool network);

// How much longer computation takes beside a collective of these ranks; on CPUs, where cores are left for the
// collective's threads.
struct Slowdown {
  double value = 0;
  std::string source;
};
Expected<Slowdown> measureSlowdown(Device& device, const MeasureOptions& options, const RankSet& set);

}  // namespace sheaf::measure
