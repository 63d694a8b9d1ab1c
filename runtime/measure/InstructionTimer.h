// Measures the time of instructions on a device through its usual interface, by small synthetic plans that all ranks
// run at once. On a device that runs whole steps as graphs (a GPU), instructions run in a graph and are timed by the
// device's clock; elsewhere they are issued one by one and timed by the host's clock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/Threads.h"
#include "runtime/device/Device.h"
#include "runtime/measure/MeasureParts.h"
#include "runtime/plan/Library.h"

namespace sheaf::measure {

class InstructionTimer {
 public:
  // `kernels` holds the kernels that instructions launch. Every rank's arena has `arenaBytes` bytes.
  InstructionTimer(Device& device, const MeasureOptions& options, const RankSet& set, uint64_t arenaBytes,
                   const plan::Plan& kernels);

  // Begins a group of instructions; all groups are made before the first is timed. The instructions of a group use
  // `footprint` bytes of the arena in turn (at least what one instruction needs), so that their operands come from the
  // cache level of that size. `first`: where those begin; groups that run together use other bytes each.
  size_t group(uint64_t footprint, uint64_t first = 0);
  // Reserves bytes for an operand of the next instruction.
  plan::Operand place(uint64_t bytes, plan::Access access, uint64_t alignment = plan::kAlignment);
  // Adds an instruction, whose operands have been placed, to the latest group.
  void add(plan::Instruction instruction, uint32_t stream = kCompute);
  // Adds a library call `copies` times, each with operands and scratch of its own.
  void add(const plan::AnyCall& call, int copies = 1);

  // Gives every rank an arena of so many bytes in another space, before the first transfer there. `folder`: of its
  // file.
  void addSpace(plan::Buffer::Space space, uint64_t bytes, const std::string& folder = {});
  // Adds a transfer between spaces, on the stream of its kind. Bytes are whole blocks of files, 4,096.
  void add(plan::Transfer::Kind kind, uint64_t bytes);
  // The stream of transfers of a kind.
  uint32_t streamOf(plan::Transfer::Kind kind);

  // Instructions added to stream `later` from now on wait for those already on stream `earlier`.
  void order(uint32_t earlier, uint32_t later);

  static constexpr uint32_t kCompute = 0, kCommunication = 1;

  uint64_t arenaBytes() const { return arenaBytes_; }
  // Number of a group's instructions, including records and waits.
  int instructions(size_t group) const { return groups_[group].last - groups_[group].first; }

  // Opens the device; to be called after the last group has been made.
  Status open();
  // Seconds per instruction of the group on one rank while all ranks run the same: the median of those repetitions that
  // are nearly as fast as the fastest. Other load on the machine can only slow a repetition down.
  Expected<double> seconds(size_t group);
  // Seconds until all ranks have finished an instruction of the group: the given quantile over the repetitions.
  Expected<double> secondsOfAll(size_t group, double quantile);
  // Seconds until the instructions of all these groups, issued together, have finished.
  Expected<double> together(const std::vector<size_t>& groups, const std::vector<int>& times);

 private:
  struct Group {
    int first = 0, last = 0;            // of the body
    uint64_t footprint = 0, begin = 0;  // bytes of the arena
    bool alike = true;                  // its instructions differ only in the places of their operands
  };
  // Instructions in order and, on devices with graphs, the graph of each rank of this process.
  struct Run {
    std::vector<const plan::Instruction*> instructions;
    std::vector<std::unique_ptr<Burst>> bursts;
  };
  struct Timing {
    double fastest, all;  // seconds of the fastest rank, and from the first begin to the last end
  };
  Expected<Run> prepare(std::vector<const plan::Instruction*> instructions);
  // Appends all instructions of a group `times` times.
  void append(std::vector<const plan::Instruction*>& list, const Group& group, int times) const;
  // Runs on all ranks at once and waits for all of them.
  Expected<Timing> measure(const Run& run);
  Expected<double> perform(const Run& run, size_t rank, double& begin, double& end);
  // Combines with the times of the other processes.
  Status combine(Timing& taken) const;
  bool tooFew(size_t repetitions, size_t least, double seconds) const;
  // The median of the fastest rank's seconds over the undisturbed repetitions; the runs take turns.
  Expected<double> undisturbed(const std::vector<Run>& runs);
  Expected<double> quantileOfAll(const Run& run, double quantile);
  // How many times a group runs in one repetition of the usual length.
  Expected<int> timesOf(const Group& group);
  // Fills the first bytes of every rank's arena with numbers like those of a training step.
  Status fill(uint64_t bytes);

  Device& device_;
  DeviceOptions options_;
  const std::function<Status()> checkInterrupt_;
  const bool gpu_;
  uint64_t arenaBytes_, cursor_ = 0;
  plan::Plan plan_;
  std::map<plan::Transfer::Kind, uint32_t> streams_;
  std::map<plan::Buffer::Space, uint32_t> spaces_;  // buffers
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<RankContext>> contexts_;
  std::unique_ptr<WorkerThreads> others_;  // the threads of all ranks but the first
  const std::shared_ptr<const StepValues> step_ = std::make_shared<StepValues>();
};

}  // namespace sheaf::measure
