// Launches on the host, of a GPU's rank on one of its streams: the host's processors run kernels on the rank's arena in
// host memory. A thread (HostThread.h) does it, with others that share the rows.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/cpu/ComputePool.h"
#include "runtime/device/cpu/RunKernel.h"
#include "runtime/device/cuda/HostThread.h"

namespace sheaf::cuda {

class HostCompute {
 public:
  struct Request {
    const plan::Instruction* instruction = nullptr;
    cpu::KernelLaunch launch;
    std::vector<std::byte*> operands;  // their addresses in host memory
  };

  // `threads`, at least 1, share a launch. They run on the processors of NUMA node `node`, as far as the process may
  // use them; -1: on any.
  static Expected<std::unique_ptr<HostCompute>> create(int threads, int node, HostThread::Fail fail);

  // The host's part and the stream's, as in HostThread. The kernel's code and the arena outlive this.
  void request(std::shared_ptr<const Request> request);
  // The stream's part ends when the launch is done.
  Status enqueue(cudaStream_t stream) { return thread_->turn(1, 1, stream); }
  void stop() { thread_->stop(); }
  int threads() const { return pool_.threads(); }

 private:
  HostCompute(int threads, std::function<void()> begin) : pool_(threads, 0, std::move(begin)) {}
  Status perform(const Request& request);

  cpu::ComputePool pool_;
  std::unique_ptr<HostThread> thread_;
};

}  // namespace sheaf::cuda
