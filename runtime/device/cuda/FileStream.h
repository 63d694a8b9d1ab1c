// Transfers between files and a GPU's rank on one of its streams. A thread (HostThread.h) does the input and output.
#pragma once

#include <memory>

#include "runtime/device/InstructionTable.h"
#include "runtime/device/cpu/FileArena.h"
#include "runtime/device/cuda/HostArena.h"
#include "runtime/device/cuda/HostThread.h"
#include "runtime/plan/RankMemory.h"

namespace sheaf::cuda {

class FileStream {
 public:
  // What is between files and the device passes through `staging`, on NUMA node `node` as in HostArena. `files` outlive
  // this.
  static Expected<std::unique_ptr<FileStream>> create(cpu::FileArena& files, const plan::FileStaging& staging, int node,
                                                      HostThread::Fail fail);

  // The host's part and the stream's, as in HostThread. `odd`: see RankContext::oddGeneration.
  void request(const plan::Instruction& instruction, const FileTransfer& transfer, bool odd);
  // The stream's part ends when what was read is there, or what was written is in the file: as on a CPU rank.
  Status enqueue(const FileTransfer& transfer, cudaStream_t stream);
  void stop() { thread_->stop(); }
  // For other work on the stream, which follows its transfers.
  HostThread& thread() { return *thread_; }

 private:
  FileStream(cpu::FileArena& files, const plan::FileStaging& staging) : files_(files), staging_(staging) {}
  uint64_t chunksOf(const FileTransfer& transfer) const {
    return transfer.onDevice ? (transfer.bytes + staging_.chunk - 1) / staging_.chunk : 1;
  }
  // Chunk i's memory in the staging.
  std::byte* slot(uint64_t chunk) const { return memory_->data() + chunk % staging_.slots * staging_.chunk; }
  Status perform(const FileTransfer& transfer, uint64_t offset);
  Status move(const FileTransfer& transfer, uint64_t offset, std::span<std::byte> memory);

  cpu::FileArena& files_;
  const plan::FileStaging staging_;
  std::unique_ptr<HostArena> memory_;  // the staging
  std::unique_ptr<HostThread> thread_;
};

}  // namespace sheaf::cuda
