#include "runtime/device/cpu/KernelImages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/base/Text.h"
#include "runtime/device/cpu/Features.h"
#include "runtime/plan/Types.h"

namespace sheaf::cpu {

Expected<std::unique_ptr<KernelImages>> KernelImages::load(const plan::Plan& plan) {
  std::unique_ptr<KernelImages> result(new KernelImages);
  const plan::KernelImage* image = plan::imageFor(plan, "cpu");
  // Without kernels, too: the calls of a plan for other devices have no scratch for this one.
  if (!image && (plan.images_size() > 0 || plan.kernels_size() > 0))
    return Status::error(cat("the plan has kernels for ", plan::targetsText(plan),
                             ", none for the CPU; compile it with --target cpu, or a list of targets with cpu in it"));
  if (plan.kernels_size() == 0) return result;
  if (image->entries_size() != plan.kernels_size())
    return Status::error("the image does not have one entry for each kernel");
  SHEAF_RETURN_IF_ERROR(result->map(*image));
  for (int i = 0; i < plan.kernels_size(); ++i) {
    if (image->entries(i).offset() >= image->code().size())
      return Status::error(cat("kernel '", plan.kernels(i).symbol(), "': its entry lies outside its image"));
    result->entries_.push_back(
        reinterpret_cast<KernelEntry>(static_cast<char*>(result->code_) + image->entries(i).offset()));
  }
  return result;
}

Status KernelImages::map(const plan::KernelImage& image) {
  for (const std::string& feature : image.features()) SHEAF_RETURN_IF_ERROR(requireFeature(feature));
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
