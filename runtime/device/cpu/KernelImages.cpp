#include "runtime/device/cpu/KernelImages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/device/cpu/Features.h"

namespace sheaf::cpu {

Expected<std::unique_ptr<KernelImages>> KernelImages::load(const plan::Plan& plan) {
  std::unique_ptr<KernelImages> result(new KernelImages);
  std::vector<void*> code(plan.images_size(), nullptr);
  for (int i = 0; i < plan.kernels_size(); ++i) {
    const plan::Kernel& kernel = plan.kernels(i);
    auto fail = [&](const std::string& why) { return Status::error("kernel '" + kernel.symbol() + "': " + why); };
    if (kernel.image() >= static_cast<uint32_t>(plan.images_size())) return fail("its image is not in the plan");
    const plan::KernelImage& image = plan.images(kernel.image());
    if (kernel.entry() >= image.code().size()) return fail("its entry lies outside its image");
    void*& base = code[kernel.image()];
    if (!base)
      if (Status status = result->map(image, base); !status.ok()) return fail(status.message());
    result->entries_.push_back(reinterpret_cast<KernelEntry>(static_cast<char*>(base) + kernel.entry()));
  }
  return result;
}

Status KernelImages::map(const plan::KernelImage& image, void*& code) {
  if (image.target() != "cpu")
    return Status::error("its image is for the target '" + image.target() + "', not for the CPU");
  for (const std::string& feature : image.features()) SHEAF_RETURN_IF_ERROR(requireFeature(feature));
  size_t bytes = image.code().size();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status::error(std::string("cannot map its image: ") + std::strerror(errno));
  mappings_.push_back({memory, bytes});
  std::memcpy(memory, image.code().data(), bytes);
  if (mprotect(memory, bytes, PROT_READ | PROT_EXEC) != 0)
    return Status::error(std::string("cannot make its image executable: ") + std::strerror(errno));
  code = memory;
  return Status();
}

KernelImages::~KernelImages() {
  for (const Mapping& mapping : mappings_) munmap(mapping.address, mapping.bytes);
}

}  // namespace sheaf::cpu
