#include "runtime/device/cuda/Gpu.h"

#include <cstdlib>
#include <string_view>
#include <vector>

#include "runtime/device/cuda/Check.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {
namespace {

constexpr int kMajor = 1000;  // CUDA 13.0 is 13000

std::string versionText(int version) {
  return cat(version / kMajor, ".", version % kMajor / 10);
}

}  // namespace

Expected<int> chooseGpu(int visible, const comm::ProcessGroup* processes) {
  // A launcher that shows every process its own GPU only (srun --gpus-per-task=1) leaves one to each.
  if (visible == 1 || !processes) return 0;
  Expected<int64_t> local = processes->localRank();
  if (!local.ok())
    return Status::error(cat(visible,
                             " GPUs are visible, and nothing says which is this process's: ", local.status().message(),
                             "; or let every process see its own GPU only (CUDA_VISIBLE_DEVICES, srun "
                             "--gpus-per-task=1)"));
  if (*local < visible) return static_cast<int>(*local);
  return Status::error(cat("process ", *local, " of this host finds ", visible,
                           " GPUs; start at most one process a GPU, or let every process see its own GPU only "
                           "(CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1)"));
}

Expected<Gpu> openGpu(const comm::ProcessGroup* processes) {
  int driver = 0, count = 0;
  cudaError_t error = cudaDriverGetVersion(&driver);
  if (error == cudaSuccess && driver > 0) error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    std::string why = "the CUDA driver finds no device";
    if (driver == 0)
      why = "no CUDA driver is installed";
    else if (error == cudaErrorInsufficientDriver)
      why = cat("the driver is for CUDA ", versionText(driver), ", and the device library for CUDA ",
                versionText(CUDART_VERSION), ": install a newer driver, or a library built with an older toolkit");
    else if (error != cudaSuccess)
      why = cudaGetErrorString(error);
    return Status::error(
        cat("there is no GPU to run on: ", why, "; a plan that was also compiled for the CPU runs with --device cpu"));
  }
  Expected<int> index = chooseGpu(count, processes);
  if (!index.ok()) return index.status();
  Gpu gpu;
  gpu.index = *index;
  SHEAF_RETURN_IF_ERROR(useGpu(gpu.index));
  cudaDeviceProp properties;
  SHEAF_RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, gpu.index), "cannot ask for the GPU's properties"));
  gpu.architecture = properties.major * 10 + properties.minor;
  gpu.name = properties.name;
  gpu.id.assign(properties.uuid.bytes, sizeof properties.uuid.bytes);
  size_t free = 0, total = 0;
  SHEAF_RETURN_IF_ERROR(check(cudaMemGetInfo(&free, &total), "cannot open the GPU"));
  gpu.freeBytes = free;
  gpu.totalBytes = total;
  return gpu;
}

Status requireOwnGpus(const Gpu& gpu, comm::ProcessGroup& processes) {
  const char *host = std::getenv("NCCL_HOSTID"), *shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const std::string mine = shared && std::string_view(shared) != "0" ? "" : cat(gpu.id, host ? host : "");
  Expected<std::vector<std::string>> all = processes.allGather(mine, "the GPUs of the processes");
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < all->size(); ++i)
    for (size_t j = i + 1; j < all->size(); ++j)
      if (!(*all)[i].empty() && (*all)[i] == (*all)[j])
        return Status::error(cat(processes.describe(static_cast<int64_t>(i)), " and ",
                                 processes.describe(static_cast<int64_t>(j)), " have the same GPU (", gpu.name,
                                 "); start one process a GPU, and let each see all GPUs of its host or its own only "
                                 "(CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1)"));
  return {};
}

Status useGpu(int index) {
  thread_local int current = -1;
  if (current == index) return {};
  SHEAF_RETURN_IF_ERROR(check(cudaSetDevice(index), "cannot use the GPU"));
  current = index;
  return {};
}

Expected<const plan::KernelImage*> imageFor(const plan::Plan& plan, const Gpu& gpu) {
  const plan::KernelImage* best = nullptr;
  int bestArchitecture = 0;
  for (const plan::KernelImage& image : plan.images()) {
    if (plan::deviceOf(image) != "cuda") continue;
    int64_t architecture = 0;
    if (!parseInteger(image.target().substr(image.target().find('_') + 1), architecture)) continue;
    if (architecture > gpu.architecture || architecture <= bestArchitecture) continue;
    best = &image;
    bestArchitecture = static_cast<int>(architecture);
  }
  if (best) return best;
  return Status::error(cat("the plan has kernels for ", plan::targetsText(plan), ", none for ", gpu.name, " (sm_",
                           gpu.architecture, "); compile it with --target cuda:sm_", gpu.architecture,
                           " or an older one"));
}

// A driver runs machine code of all toolkits of its major version and of older ones (CUDA Compatibility, "Minor Version
// Compatibility").
Status checkImage(cudaError_t error, const std::string& what, const plan::KernelImage& image) {
  const Status status = check(error, what.c_str());
  int driver = 0;
  int64_t made = 0;
  if (status.ok() || cudaDriverGetVersion(&driver) != cudaSuccess) return status;
  if (!parseInteger(image.toolkit().substr(0, image.toolkit().find('.')), made) || made <= driver / kMajor)
    return status;
  return Status::error(cat(status.message(), "; their machine code was made by ptxas of CUDA ", image.toolkit(),
                           ", and the driver is for CUDA ", versionText(driver), ": install a driver for CUDA ", made,
                           ", or compile the plan with a toolkit of CUDA ", driver / kMajor,
                           " (CUDA_HOME names its "
                           "folder)"));
}

}  // namespace sheaf::cuda
