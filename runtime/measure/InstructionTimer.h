// Times instructions on a device through its normal interface: small synthetic plans, on all ranks at once. Where the
// device runs steps as a whole (a GPU's graphs), so are instructions here, timed by its own clock; elsewhere they are
// issued one by one, timed by the host's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/Device.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::measure {

class InstructionTimer {
 public:
  // Kernels that instructions launch are those of `kernels`. Every rank's arena has `arenaBytes`.
  InstructionTimer(Device& device, const MeasureOptions& options, const RankSet& set, uint64_t arenaBytes,
                   const plan::Plan& kernels);

  // Groups of instructions are made first, then timed. A group cycles through `footprint` bytes of the arena, so that
  // its operands come from the level of the caches that holds as much; at least what one instruction needs.
  size_t group(uint64_t footprint);
  // An operand of the next instruction.
  plan::Operand place(uint64_t bytes, plan::Access access);
  // Adds an instruction to the latest group; its operands have been placed.
  void add(plan::Instruction instruction, uint32_t stream = kCompute);
  void call(plan::LibraryCall call, uint32_t stream = kCompute);  // with scratch if it needs any

  // What is added to `later` from now on waits for what `earlier` has.
  void order(uint32_t earlier, uint32_t later);

  static constexpr uint32_t kCompute = 0, kCommunication = 1;

  uint64_t arenaBytes() const { return arenaBytes_; }
  // Of a group, records and waits included.
  int instructions(size_t group) const { return groups_[group].last - groups_[group].first; }

  // After the last group.
  Status open();
  // Seconds an instruction of the group takes on a rank while all ranks run the same: of many short repetitions the
  // median of those that are about as quick as the quickest, since other load on the machine only slows down.
  Expected<double> seconds(size_t group);
  // Seconds until all ranks are done with an instruction of the group: a quantile of the repetitions.
  Expected<double> secondsOfAll(size_t group, double quantile);
  // Seconds until all instructions of all these groups are done, all issued at once.
  Expected<double> together(const std::vector<size_t>& groups, const std::vector<int>& times);

 private:
  struct Group {
    int first = 0, last = 0;  // of the body
    uint64_t footprint = 0;
    bool alike = true;  // its instructions are the same but for their places
  };
  // Instructions in order, and on every rank of this process what runs them, if issuing them one by one is not it.
  struct Run {
    std::vector<const plan::Instruction*> instructions;
    std::vector<std::unique_ptr<Burst>> bursts;
  };
  struct Taken {
    double quickest, all;  // seconds of the quickest rank, and from the first's begin to the last's end
  };
  Expected<Run> prepare(std::vector<const plan::Instruction*> instructions);
  // All instructions of a group, so many times.
  void append(std::vector<const plan::Instruction*>& list, const Group& group, int times) const;
  // Runs it on all ranks at once, until all are done.
  Expected<Taken> measure(const Run& run);
  Expected<double> perform(const Run& run, size_t rank, double& begin, double& end);
  // With the times of the other processes.
  Status combine(Taken& taken) const;
  bool tooFew(size_t repetitions, size_t least, double seconds) const;
  // The median of the quickest rank's seconds over the repetitions that nothing disturbed, the runs taken in turn.
  Expected<double> undisturbed(const std::vector<Run>& runs);
  Expected<double> quantileOfAll(const Run& run, double quantile);
  // How often a group is to run for a repetition of the usual length.
  Expected<int> timesOf(const Group& group);
  // Numbers like those of a step into the first bytes of every rank's arena.
  Status fill(uint64_t bytes);

  Device& device_;
  const DeviceOptions options_;
  const std::function<Status()> goOn_;
  const bool gpu_;
  uint64_t arenaBytes_, cursor_ = 0;
  plan::Plan plan_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<RankContext>> contexts_;
  const std::shared_ptr<const StepValues> step_ = std::make_shared<StepValues>();
};

}  // namespace sheaf::measure
