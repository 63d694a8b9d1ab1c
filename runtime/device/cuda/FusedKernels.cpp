#include "runtime/device/cuda/FusedKernels.h"

#include <vector>

#include "runtime/device/cuda/Check.h"
#include "runtime/device/cuda/Resources.h"

namespace sheaf::cuda {
namespace {

using Library = std::unique_ptr<std::remove_pointer_t<cudaLibrary_t>, Releaser<cudaLibraryUnload>>;

class LoadedKernels : public FusedKernels {
 public:
  Status load(const plan::Plan& plan, const plan::KernelImage& image) {
    target_ = image.target();
    if (image.entries_size() != plan.kernels_size())
      return Status::error(cat("the image for ", target_, " does not have one entry for each kernel"));
    cudaLibrary_t library = nullptr;
    cudaError_t error = cudaLibraryLoadData(&library, image.code().data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    SHEAF_RETURN_IF_ERROR(checkImage(error, cat("cannot load the plan's kernels for ", target_), image));
    library_.reset(library);
    for (int i = 0; i < plan.kernels_size(); ++i) {
      const std::string& symbol = plan.kernels(i).symbol();
      cudaKernel_t kernel = nullptr;
      SHEAF_RETURN_IF_ERROR(checkImage(cudaLibraryGetKernel(&kernel, library, symbol.c_str()),
                                       cat("the image for ", target_, " has no kernel '", symbol, "'"), image));
      // Asking for its attributes makes the driver load it.
      cudaFuncAttributes attributes;
      SHEAF_RETURN_IF_ERROR(checkImage(cudaFuncGetAttributes(&attributes, kernel),
                                       cat("cannot load kernel '", symbol, "' for ", target_), image));
      const plan::KernelEntry& entry = image.entries(i);
      if (entry.grid() == 0 || entry.threads() == 0 ||
          entry.threads() > static_cast<uint32_t>(attributes.maxThreadsPerBlock))
        return Status::error(cat("kernel '", symbol, "' cannot be launched in blocks of ", entry.threads(),
                                 " threads; this GPU allows it ", attributes.maxThreadsPerBlock));
      kernels_.push_back({kernel, entry.grid(), entry.threads()});
    }
    return {};
  }

  std::string target() const override { return target_; }

  Status launch(const ResolvedInstruction& launch, void** arguments, cudaStream_t stream) const override {
    if (launch.index >= kernels_.size()) return Status::error(cat("kernel ", launch.index, " is not in the plan"));
    const Kernel& kernel = kernels_[launch.index];
    return check(cudaLaunchKernel(kernel.function, dim3(kernel.grid), dim3(kernel.threads), arguments, 0, stream),
                 "cannot launch the kernel");
  }

 private:
  struct Kernel {
    cudaKernel_t function;
    uint32_t grid, threads;
  };
  std::string target_;
  Library library_;
  std::vector<Kernel> kernels_;
};

}  // namespace

Expected<std::unique_ptr<FusedKernels>> FusedKernels::load(const plan::Plan& plan, const Gpu& gpu) {
  auto kernels = std::make_unique<LoadedKernels>();
  if (plan.kernels_size() > 0) {
    Expected<const plan::KernelImage*> image = imageFor(plan, gpu);
    if (!image.ok()) return image.status();
    SHEAF_RETURN_IF_ERROR(kernels->load(plan, **image));
  }
  return std::unique_ptr<FusedKernels>(std::move(kernels));
}

}  // namespace sheaf::cuda
