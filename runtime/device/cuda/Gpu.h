// The GPU that a process uses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/comm/process/ProcessGroup.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

struct Gpu {
  int index = 0;
  int architecture = 0;  // 90 for sm_90
  std::string name;
  std::string id;                          // differs from that of every other GPU
  uint64_t freeBytes = 0, totalBytes = 0;  // of its memory; free when it was opened
};

// The index of this process's GPU among the `visible` ones (at least one): 0 if there is only one, else the process's
// number on its host. `processes`: of the job; null: this is the only one, which takes the first GPU. Where the
// launcher does not say the number, or there are fewer GPUs than processes, an error names what to set.
Expected<int> chooseGpu(int visible, const comm::ProcessGroup* processes);

// This process's GPU, made this thread's. One clear error if there is no driver, no GPU, or chooseGpu() finds none.
Expected<Gpu> openGpu(const comm::ProcessGroup* processes);

// An error in all processes if two of them have opened the same GPU, unless variables of NCCL put them on different
// hosts (NCCL_HOSTID) or let ranks share GPUs (NCCL_MULTI_RANK_GPU_ENABLE).
Status requireOwnGpus(const Gpu& gpu, comm::ProcessGroup& processes);

// Makes it the calling thread's GPU.
Status useGpu(int index);

// The plan's image that fits best: the newest architecture that is not newer than the GPU. Its machine code runs if it
// is of the GPU's generation, else its PTX is compiled by the driver. An error that says what the plan has and what the
// GPU is, if there is none.
Expected<const plan::KernelImage*> imageFor(const plan::Plan& plan, const Gpu& gpu);

// As check(), of a call that loads the image or something in it. If its machine code was made for a newer CUDA than the
// driver's, the error names both versions, and what to change.
Status checkImage(cudaError_t error, const std::string& what, const plan::KernelImage& image);

}  // namespace sheaf::cuda
