// The double's fused kernels: those of the plan's image for the CPU, or, if it has none, of that for launches on the
// host, which has few of them. What a GPU would run is tested elsewhere, in thread blocks; here the plan is, around it.
// Which image a GPU would take is still decided, and its error reported.
#include "runtime/device/cuda/FusedKernels.h"

#include <cstdlib>
#include <vector>

#include "runtime/base/Text.h"
#include "runtime/device/cpu/KernelImages.h"
#include "runtime/device/cpu/RaceRanges.h"
#include "runtime/plan/Types.h"
#include "test/emulation/Devices.h"
#include "test/emulation/Stream.h"

namespace sheaf::emulation {

// A driver loads no machine code of a newer major version (CUDA Compatibility, "Minor Version Compatibility").
static bool loads(const plan::KernelImage& image) {
  int driver = 0;
  return cudaDriverGetVersion(&driver) == cudaSuccess && std::atoi(image.toolkit().c_str()) <= driver / 1000;
}

}  // namespace sheaf::emulation

namespace sheaf::cuda {
namespace {

class CpuKernels : public FusedKernels {
 public:
  CpuKernels(std::unique_ptr<cpu::KernelImages> images, std::string target)
      : images_(std::move(images)), target_(std::move(target)) {}

  std::string target() const override { return target_; }

  Status launch(const ResolvedInstruction& launch, void** arguments, cudaStream_t stream) const override {
    cpu::KernelEntry entry = images_->entry(launch.index);
    if (!entry) return Status::error("the kernel is not in the plan");
    std::vector<std::byte*> operands;
    for (size_t i = 0; i < launch.operands.size(); ++i) operands.push_back(*static_cast<std::byte**>(arguments[i]));
    emulation::useContext("cudaLaunchKernel", stream->device);
    cudaError_t error =
        emulation::enqueue(stream, [entry, operands, instruction = launch.instruction, rows = launch.launch.rows] {
          cpu::declareAccesses(*instruction, operands.data());
          entry(reinterpret_cast<void**>(const_cast<std::byte**>(operands.data())), 0, rows);
        });
    return error == cudaSuccess ? Status() : Status::error("cannot launch the kernel");
  }

 private:
  std::unique_ptr<cpu::KernelImages> images_;
  std::string target_;
};

}  // namespace

Expected<std::unique_ptr<FusedKernels>> FusedKernels::load(const plan::Plan& plan, const Gpu& gpu) {
  std::string target;
  if (plan::imageFor(plan, "cuda")) {
    Expected<const plan::KernelImage*> image = imageFor(plan, gpu);
    if (!image.ok()) return image.status();
    target = (*image)->target();
    const cudaError_t error = emulation::loads(**image) ? cudaSuccess : cudaErrorInvalidKernelImage;
    SHEAF_RETURN_IF_ERROR(checkImage(error, cat("cannot load the plan's kernels for ", target), **image));
  }
  const bool forHost = !plan::imageFor(plan, "cpu") && plan::hostImage(plan);
  auto images = forHost ? cpu::KernelImages::loadForHost(plan) : cpu::KernelImages::load(plan);
  if (!images.ok()) return images.status();
  return std::unique_ptr<FusedKernels>(new CpuKernels(std::move(*images), target));
}

}  // namespace sheaf::cuda
