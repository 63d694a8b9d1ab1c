// A rank on a GPU: its arenas, a CUDA stream for each stream of the plan, and events. The issuing thread enqueues
// everything in the plan's order. What a step takes from the host is read by that thread when it is issued, up to a
// step before the GPU needs it. Every function is called by a thread that uses the rank's GPU: RankOnGpu.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/device/cuda/GpuInstructions.h"
#include "runtime/device/cuda/InstructionClock.h"
#include "runtime/device/cuda/StepGraphs.h"
#include "runtime/device/cuda/World.h"

namespace sheaf::cuda {

// A RankContext for RankOnGpu alone: nothing else can call one, or hand one out.
class CudaContext : private RankContext {
 public:
  // `local` counts the ranks of this process.
  static Expected<std::unique_ptr<CudaContext>> create(std::shared_ptr<World> world, int64_t local);
  ~CudaContext() override;

  const Blas& blas() const { return *blas_; }

 private:
  friend class RankOnGpu;
  Status issue(const plan::Instruction& instruction, std::shared_ptr<const StepValues> step) override;
  Status poll() override;
  Status synchronize() override;
  Status read(uint64_t offset, std::span<std::byte> host) override;
  Status write(uint64_t offset, std::span<const std::byte> host) override;
  Status readSpace(plan::Buffer::Space space, uint64_t offset, std::span<std::byte> host) override;
  Status writeSpace(plan::Buffer::Space space, uint64_t offset, std::span<const std::byte> host) override;
  bool oddGeneration() const override { return odd_; }
  Status commit(const Committed& state) override;
  Status writeChecksum() override;
  Status verifyChecksum() override;
  uint64_t highestTouchedByte() override;
  Expected<std::unique_ptr<Burst>> prepare(std::span<const plan::Instruction* const> instructions) override;
  void abort(const std::string& why) override;

  using Values = std::shared_ptr<const StepValues>;
  // How often instructions are issued one by one before they are captured. The first use of a library may do what a
  // capture forbids. And NCCL's copy engines must have gathered twice, or the first gather of a graph does not wait for
  // its peers (docs/cuda-runtime.md, "Flags of copy-engine gathers"). Those of the warm-up do not count: NCCL may do
  // them, which are small, by kernels.
  static constexpr int64_t kRunsBeforeGraphs = 2;
  // How a list is issued.
  enum class Mode { kDirect, kCapture, kLaunch };
  struct Delivery;
  class GraphBurst;

  CudaContext(std::shared_ptr<World> world, int64_t local);
  Status open();
  Status openMemory();
  // Finds what graphs need to know of each list.
  Status openGraphs();
  Status begin(size_t list, const StepValues* step);
  Status end(size_t list, const Values& step);
  Status perform(Entry& entry, const Values& step);
  // Appends instructions to their streams, or to the graph that is being captured, as no part of a list.
  Status enqueueAll(std::span<const plan::Instruction* const> instructions);
  // The host's part of an instruction: fills the slot that the device reads, or asks for what the stream will wait for.
  Status fillSlot(Entry& entry, const Values& step);
  // The device's part.
  Status enqueue(Entry& entry, const Values& step);
  Status launch(const Entry& entry, const Values& step, cudaStream_t stream);
  Status call(const Entry& entry, const Values& step, cudaStream_t stream);
  Status transfer(const Entry& entry, cudaStream_t stream);
  Status persist(const Entry& entry, cudaStream_t stream);
  // Waits until the files of all ranks hold the state before this step, or the run is aborted.
  void awaitStateBefore();
  Status output(Entry& entry, const Values& step, cudaStream_t stream);
  Status deliver(std::vector<const Entry*> outputs, const Values& step, cudaStream_t stream);
  Status setStepNumber(uint32_t stream, const StepValues* step);
  void take(const Delivery& delivery);
  int slotOf(const Entry& entry) const { return entry.list >= 0 ? lists_[static_cast<size_t>(entry.list)].slot : 0; }
  void raise(const plan::Instruction& instruction, const std::string& why);
  void raiseFinding(uint64_t finding);
  int64_t rank() const { return world_->options.firstRank + local_; }

  const std::shared_ptr<World> world_;
  const int64_t local_;
  Arena& arena_;
  OtherSpaces& spaces_;
  Progress& progress_;
  std::shared_ptr<Blas> blas_;  // shared: Blas is not known here
  std::vector<Stream> streams_;
  // Of the plan's events: their records outside of graphs, and those in the graph that is being captured.
  std::vector<Event> events_, capturedEvents_;
  std::vector<bool> lastInGraph_;  // where each event's latest record is
  std::unique_ptr<GpuInstructions> table_;
  std::unique_ptr<StepGraphs> graphs_;
  InstructionClock clock_;

  bool odd_ = false;                   // see oddGeneration(): of what is issued next
  Event persisted_;                    // all ranks have made the last step durable that was issued
  DeviceMemory values_;                // the finding, then for each stream the step's number
  std::vector<int64_t> stepOnStream_;  // what the stream's step number is or will be
  // A list of the table; the last one is for what is in none.
  struct List {
    std::vector<HostSlots> steps;  // numbers of steps, for each stream
    // Its outputs to the host, the streams on which it makes library calls, the events that it records.
    std::vector<const Entry*> outputs;
    std::vector<uint32_t> callingStreams, recordedEvents;
    int64_t runs = 0;  // issued so far
    int slot = 0;
  };
  size_t graphOf(size_t list) const { return list * kSlots + static_cast<size_t>(lists_[list].slot); }
  std::vector<List> lists_;
  size_t current_ = 0;  // the list that is being issued
  Mode mode_ = Mode::kDirect;
};

}  // namespace sheaf::cuda
