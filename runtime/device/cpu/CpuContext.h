// A rank on the CPU: an arena, a thread per stream, a pool for compute instructions.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/AbortSignal.h"
#include "runtime/comm/Communicator.h"
#include "runtime/comm/process/SubGroup.h"
#include "runtime/comm/shared/SharedMemory.h"
#include "runtime/comm/transport/Transport.h"
#include "runtime/device/Device.h"
#include "runtime/device/InstructionTable.h"
#include "runtime/device/cpu/Arena.h"
#include "runtime/device/cpu/ComputePool.h"
#include "runtime/device/cpu/DurableState.h"
#include "runtime/device/cpu/Events.h"
#include "runtime/device/cpu/FileArena.h"
#include "runtime/device/cpu/KernelImages.h"
#include "runtime/device/cpu/LibraryFunction.h"
#include "runtime/device/cpu/Stream.h"

namespace sheaf::cpu {

// What the ranks of a process share. It lives as long as the last of them.
struct World {
  const plan::Plan* plan = nullptr;
  DeviceOptions options;
  int spins = 0;  // see spinUntil
  std::unique_ptr<KernelImages> kernels;
  // Where several processes of this host have ranks: their arenas lie in it.
  std::unique_ptr<comm::SharedMemory> shared;
  // All of this process's ranks', because a peer may still read from the arena of a rank that is being closed.
  std::vector<std::unique_ptr<Arena>> arenas;
  // Of the other spaces, by rank of this process; empty where the plan has no buffers there.
  std::vector<std::unique_ptr<Arena>> hostArenas;
  std::vector<std::unique_ptr<FileArena>> fileArenas;
  // The processes of this node, and the one of each node that has this process's place in its own.
  std::optional<comm::SubGroup> node, counterparts;
  // Of each of the plan's communicators: by the group of its axis (groupOf), those that this process has ranks in.
  std::vector<std::map<int64_t, std::unique_ptr<comm::Communicator>>> communicators;
  // What some of them use: processes of a group, and the transport between them.
  std::vector<std::unique_ptr<comm::SubGroup>> groups;
  std::vector<std::unique_ptr<comm::Transport>> subTransports;
  // Destroyed before the memory that it moves.
  std::unique_ptr<comm::Transport> transport;
  std::vector<std::unique_ptr<Events>> events;  // of each rank of this process
  // The listeners of the signal are the three above.
  comm::AbortSignal abort;

  size_t local(int64_t rank) const { return static_cast<size_t>(rank - options.firstRank); }
};

// An instruction of a rank, with what runs it.
struct Entry : ResolvedInstruction {
  std::shared_ptr<const LibraryFunction> function;  // a library call; the ranks of the process share it
  comm::Communicator* communicator = nullptr;       // a collective or a persist; null if the plan has none for it
  int64_t place = 0;                                // the rank's place on the communicator
};
using Entries = InstructionTable<Entry>;

class CpuContext : public RankContext {
 public:
  CpuContext(std::shared_ptr<World> world, int64_t rank, std::shared_ptr<Entries> entries);
  ~CpuContext() override;

  // An error if a thread could not be started: then nothing may be issued.
  Status status() const;
  Status issue(const plan::Instruction& instruction, std::shared_ptr<const StepValues> step) override;
  Status poll() override { return world_->abort.status(); }
  Status synchronize() override;
  Status read(uint64_t offset, std::span<std::byte> host) override;
  Status write(uint64_t offset, std::span<const std::byte> host) override;
  Status readSpace(plan::Buffer::Space space, uint64_t offset, std::span<std::byte> host) override;
  Status writeSpace(plan::Buffer::Space space, uint64_t offset, std::span<const std::byte> host) override;
  bool oddGeneration() const override { return odd_; }
  Status commit(const Committed& state) override;
  Status writeChecksum() override;
  Status verifyChecksum() override;
  uint64_t highestTouchedByte() override { return arena_.highestTouchedByte(); }
  void abort(const std::string& why) override;

 private:
  // The arena of a space in memory; null if there is none.
  const Arena* memoryOf(plan::Buffer::Space space) const;
  Status checkRange(plan::Buffer::Space space, uint64_t offset, uint64_t bytes) const;
  // On the stream's thread. After an abort work is dropped, so that queues drain.
  void perform(const Work& work, uint32_t stream);
  Status execute(const Work& work, ComputePool& pool);
  Status launch(const Work& work, ComputePool& pool);
  Status call(const Work& work, ComputePool& pool);
  Status collective(const Entry& entry);
  Status transfer(const Entry& entry, bool odd);
  Status persist(const Work& work);
  // All ranks have come here.
  Status vote(const Entry& persist);
  // Waits until the files of all ranks hold the state before the step of this work, or the run is aborted.
  void awaitStateBefore(const Work& work);
  Status writeOutput(const Work& work);

  const std::shared_ptr<World> world_;
  const int64_t rank_;
  const std::shared_ptr<Entries> entries_;
  const Arena& arena_;
  const Arena* const host_;              // null: there is none
  FileArena* const file_;                // the same
  std::optional<DurableState> durable_;  // of the latter
  bool odd_ = false;                     // of what is issued next
  // The step of the last issued instruction; persists issued in all, and before that step.
  int64_t issuedStep_ = -1;
  uint64_t issuedPersists_ = 0, persistsBefore_ = 0;
  std::mutex persistMutex_;
  std::condition_variable persisted_;
  uint64_t donePersists_ = 0;  // under the mutex
  const uint32_t computeStream_;
  ComputePool pool_;    // of the compute stream
  ComputePool single_;  // of the other streams: their own thread
  Events& events_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace sheaf::cpu
