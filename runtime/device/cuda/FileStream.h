// Transfers between files and a GPU's rank on one of its streams. A thread does the input and output, in the stream's
// order; the stream and the thread take turns by words in pinned memory (kernels/HandOver.h), in graphs as outside of
// them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/device/cpu/FileArena.h"
#include "runtime/device/cuda/HostArena.h"
#include "runtime/device/cuda/Resources.h"
#include "runtime/device/cuda/kernels/HandOver.h"
#include "runtime/plan/RankMemory.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

class FileStream {
 public:
  struct Request {
    const plan::Instruction* instruction = nullptr;
    bool read = false;    // from the file; else to it
    uint64_t offset = 0;  // in the rank's files
    uint64_t bytes = 0;
    std::byte* memory = nullptr;  // of the device or the host
    bool onDevice = false;
  };
  // Receives an error of input or output, on the thread. It aborts the run, which calls stop().
  using Fail = std::function<void(const plan::Instruction&, const std::string& why)>;

  // What is between files and the device passes through `staging`, on NUMA node `node` as in HostArena. `files` outlive
  // this.
  static Expected<std::unique_ptr<FileStream>> create(cpu::FileArena& files, const plan::FileStaging& staging, int node,
                                                      Fail fail);
  // After the stream has come to its end, or after stop().
  ~FileStream();

  // The host's part: the thread does it when the stream comes to it. Requests are made in the stream's order, each once
  // for every time that the stream comes to it, and before it does.
  void request(const Request& request);
  // The stream's part, to be captured or to be done at once. It ends when what was read is there, or what was written
  // is in the file: as on a CPU rank.
  Status enqueue(const Request& request, cudaStream_t stream);
  // Ends all waits, of the stream and of the thread, from any thread: what was under way is left as it is.
  void stop();

 private:
  FileStream(cpu::FileArena& files, const plan::FileStaging& staging, Fail fail)
      : files_(files), staging_(staging), fail_(std::move(fail)) {}
  uint64_t chunksOf(const Request& request) const {
    return request.onDevice ? (request.bytes + staging_.chunk - 1) / staging_.chunk : 1;
  }
  // Chunk i's memory in the staging.
  std::byte* slot(uint64_t chunk) const { return memory_->data() + chunk % staging_.slots * staging_.chunk; }
  void work();
  Status perform(const Request& request);
  Status move(const Request& request, uint64_t begin, std::span<std::byte> memory);
  // Until the stream has reported once more; false after stop().
  bool await();
  void report();
  HandOver& words() const { return *reinterpret_cast<HandOver*>(words_.get()); }

  cpu::FileArena& files_;
  const plan::FileStaging staging_;
  const Fail fail_;
  std::unique_ptr<HostArena> memory_;  // the staging
  PinnedMemory words_;
  uint64_t awaited_ = 0, done_ = 0;  // by the thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> requests_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace sheaf::cuda
