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

  static constexpr uint32_t kCompute = 0, kCommunication = 1;

  // After the last group.
  Status open();
  // Seconds an instruction of the group takes while all ranks run the same: the lower quartile of repetitions, since
  // other load on the machine only slows down.
  Expected<double> seconds(size_t group);
  // Seconds until all instructions of all these groups are done, all issued at once.
  Expected<double> together(const std::vector<size_t>& groups, const std::vector<int>& times);

 private:
  struct Group {
    int first = 0, last = 0;  // of the body
    uint64_t footprint = 0;
  };
  using Issue = std::function<Status(RankContext& context)>;
  // Runs `issue` on all ranks at once, then synchronizes them.
  Expected<double> measure(const Issue& issue);
  Expected<double> lowerQuartile(const Issue& issue);
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
