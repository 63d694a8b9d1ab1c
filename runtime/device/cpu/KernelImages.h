// The plan's compiled kernels, mapped as code.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cpu {

// A kernel's entry: args[i] is operand i's address; computes the rows [begin, end).
using KernelEntry = void (*)(void** args, int64_t begin, int64_t end);

class KernelImages {
 public:
  // Checks that the processor can run the plan's image for the CPU, and maps it.
  static Expected<std::unique_ptr<KernelImages>> load(const plan::Plan& plan);
  // The same with the image for launches on the host (plan::hostImage), which may lack kernels that are not launched
  // there. For devices whose own kernels are others.
  static Expected<std::unique_ptr<KernelImages>> loadForHost(const plan::Plan& plan);
  ~KernelImages();
  KernelImages(const KernelImages&) = delete;
  KernelImages& operator=(const KernelImages&) = delete;

  // Entry of Plan.kernels[kernel]; null if the plan or the image lacks it.
  KernelEntry entry(uint32_t kernel) const { return kernel < entries_.size() ? entries_[kernel] : nullptr; }

 private:
  KernelImages() = default;
  Status mapKernels(const plan::Plan& plan, const plan::KernelImage& image);
  Status map(const plan::KernelImage& image);

  void* code_ = nullptr;
  size_t bytes_ = 0;
  std::vector<KernelEntry> entries_;
};

}  // namespace sheaf::cpu
