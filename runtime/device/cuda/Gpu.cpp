#include "runtime/device/cuda/Gpu.h"

#include "runtime/device/cuda/Check.h"
#include "runtime/plan/Types.h"

namespace sheaf::cuda {

Expected<Gpu> openGpu(int64_t localProcess) {
  int driver = 0, count = 0;
  cudaError_t error = cudaDriverGetVersion(&driver);
  if (error == cudaSuccess && driver > 0) error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return Status::error(cat("there is no GPU to run on: ",
                             driver == 0            ? "no CUDA driver is installed"
                             : error != cudaSuccess ? cudaGetErrorString(error)
                                                    : "the CUDA driver finds no device",
                             "; a plan that was also compiled for the CPU runs with --device cpu"));
  }
  if (localProcess >= count)
    return Status::error(cat("process ", localProcess, " of this machine finds ", count, count == 1 ? " GPU" : " GPUs",
                             "; start one process a GPU (CUDA_VISIBLE_DEVICES may hide "
                             "some)"));
  Gpu gpu;
  // A launcher that shows every process its own GPU only leaves one to each.
  gpu.index = static_cast<int>(localProcess);
  SHEAF_RETURN_IF_ERROR(useGpu(gpu.index));
  cudaDeviceProp properties;
  SHEAF_RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, gpu.index), "cannot ask for the GPU's properties"));
  gpu.architecture = properties.major * 10 + properties.minor;
  gpu.name = properties.name;
  size_t free = 0, total = 0;
  SHEAF_RETURN_IF_ERROR(check(cudaMemGetInfo(&free, &total), "cannot open the GPU"));
  gpu.freeBytes = free;
  gpu.totalBytes = total;
  return gpu;
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

}  // namespace sheaf::cuda
