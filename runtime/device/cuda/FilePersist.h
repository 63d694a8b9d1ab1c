// Persist on a GPU's stream, that of the stores. The stream's thread (FileStream.h) makes the step durable, then the
// ranks vote: a rank's vote passes from its thread through the GPU to the others' threads, so that a rank whose files
// are not durable does not give one, however its stream goes on after an error. The thread that stores is the one that
// sees the votes, so it overwrites nothing without them.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "runtime/comm/AbortSignal.h"
#include "runtime/device/Device.h"
#include "runtime/device/cpu/DurableState.h"
#include "runtime/device/cuda/FileStream.h"
#include "runtime/device/cuda/Resources.h"

namespace sheaf::cuda {

class FilePersist {
 public:
  struct Request {
    const plan::Instruction* instruction = nullptr;
    bool odd = false;  // where generations were before it: RankContext::oddGeneration
    std::shared_ptr<const StepValues> step;
    std::span<const std::byte> lossScale;  // pinned, and written by the stream; empty if there is none
  };

  // `ranks`: that vote. State, stream and signal outlive this.
  static Expected<std::unique_ptr<FilePersist>> create(cpu::DurableState& state, FileStream& stream,
                                                       comm::AbortSignal& abort, int64_t rank, int64_t ranks);

  // The host's part and the stream's, as in HostThread. The stream's part ends when all ranks' files are durable.
  // With several ranks `votes` are four bytes of the device, which `sum` appends a sum over the ranks of.
  void request(Request request);
  // Waits for what was requested, after the stream is done, or after its stop().
  void drain() { stream_.thread().drain(); }
  Status enqueue(std::byte* votes, const std::function<Status()>& sum, cudaStream_t stream);

 private:
  struct Words;
  FilePersist(cpu::DurableState& state, FileStream& stream, comm::AbortSignal& abort, int64_t rank, int64_t ranks)
      : state_(state), stream_(stream), abort_(abort), rank_(rank), ranks_(ranks) {}
  Words& words() const;
  Status perform(const Request& request);
  Status checkVotes() const;

  cpu::DurableState& state_;
  FileStream& stream_;
  comm::AbortSignal& abort_;
  const int64_t rank_, ranks_;
  int64_t persists_ = 0;  // done, by the thread
  PinnedMemory words_;
};

}  // namespace sheaf::cuda
