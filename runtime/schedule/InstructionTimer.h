// Times instructions on a device through its normal interface: small synthetic plans, on all ranks at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/Device.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::schedule {

class InstructionTimer {
 public:
  // Kernels that instructions launch are those of `kernels`. Every rank's arena has `arenaBytes`.
  InstructionTimer(Device& device, int64_t ranks, int threads, uint64_t arenaBytes, const plan::Plan& kernels);

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
  using Issue = std::function<Status(RankContext& context)>;
  struct Taken {
    double quickest, all;  // seconds of the quickest rank, and from the first's begin to the last's end
  };
  // Runs `issue` on all ranks at once, then synchronizes them.
  Expected<Taken> measure(const Issue& issue);
  // The median of the quickest rank's seconds over the repetitions that nothing disturbed.
  Expected<double> undisturbed(const Issue& issue);
  Expected<double> quantileOfAll(const Issue& issue, double quantile);
  // How often a group is to run for a repetition of the usual length.
  Expected<int> timesOf(const Group& group);
  // All instructions of the group, so many times.
  Status issueGroup(RankContext& context, const Group& group, int times) const;

  Device& device_;
  DeviceOptions options_;
  uint64_t arenaBytes_, cursor_ = 0;
  plan::Plan plan_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<RankContext>> contexts_;
  const std::shared_ptr<const StepValues> step_ = std::make_shared<StepValues>();
};

}  // namespace sheaf::schedule
