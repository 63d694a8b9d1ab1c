#include "runtime/device/cpu/KernelImages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/base/Text.h"
#include "runtime/device/cpu/Features.h"
#include "runtime/plan/Types.h"

namespace sheaf::cpu {

namespace {

Status requireFeatures(const plan::KernelImage& image) {
  for (const std::string& feature : image.features()) SHEAF_RETURN_IF_ERROR(requireFeature(feature));
  return {};
}

}  // namespace

Expected<std::unique_ptr<KernelImages>> KernelImages::load(const plan::Plan& plan) {
  std::unique_ptr<KernelImages> result(new KernelImages);
  const plan::KernelImage* image = plan::imageFor(plan, "cpu");
  // Without kernels, too: the calls of a plan for other devices have no scratch for this one.
  if (!image && (plan.images_size() > 0 || plan.kernels_size() > 0))
    return Status::error(cat("the plan has kernels for ", plan::targetsText(plan),
                             ", none for the CPU; compile it with --target cpu, or a list of targets with cpu in it"));
  if (plan.kernels_size() == 0) return result;
  SHEAF_RETURN_IF_ERROR(requireFeatures(*image));
  SHEAF_RETURN_IF_ERROR(result->mapKernels(plan, *image));
  for (int i = 0; i < plan.kernels_size(); ++i)
    if (!result->entries_[static_cast<size_t>(i)])
      return Status::error(cat("kernel '", plan.kernels(i).symbol(), "': its entry lies outside its image"));
  return result;
}

Expected<std::unique_ptr<KernelImages>> KernelImages::loadForHost(const plan::Plan& plan) {
  std::unique_ptr<KernelImages> result(new KernelImages);
  const plan::KernelImage* image = plan::hostImage(plan);
  if (!image)
    return Status::error(cat("the plan has launches on the host, and kernels for ", plan::targetsText(plan),
                             " only; compile the model again"));
  if (plan.kernels_size() == 0) return result;
  if (Status status = requireFeatures(*image); !status.ok())
    return Status::error(cat("launches on the host: ", status.message(), ", or with --cpu x86-64-v", abiLevel(),
                             ", or with --update-on device"));
  SHEAF_RETURN_IF_ERROR(result->mapKernels(plan, *image));
  return result;
}

Status KernelImages::mapKernels(const plan::Plan& plan, const plan::KernelImage& image) {
  if (image.entries_size() != plan.kernels_size())
    return Status::error("the image does not have one entry for each kernel");
  SHEAF_RETURN_IF_ERROR(map(image));
  for (uint32_t i = 0; i < static_cast<uint32_t>(plan.kernels_size()); ++i)
    entries_.push_back(
        plan::hasKernel(image, i)
            ? reinterpret_cast<KernelEntry>(static_cast<char*>(code_) + image.entries(static_cast<int>(i)).offset())
            : nullptr);
  return {};
}

Status KernelImages::map(const plan::KernelImage& image) {
  size_t bytes = image.code().size();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status::error(std::string("cannot map the kernels: ") + std::strerror(errno));
  code_ = memory;
  bytes_ = bytes;
  std::memcpy(memory, image.code().data(), bytes);
  if (mprotect(memory, bytes, PROT_READ | PROT_EXEC) != 0)
    return Status::error(std::string("cannot make the kernels executable: ") + std::strerror(errno));
  return Status();
}

KernelImages::~KernelImages() {
  if (code_) munmap(code_, bytes_);
}

}  // namespace sheaf::cpu
