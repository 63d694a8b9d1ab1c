// The plan's compiled kernels on a GPU. (The tests' double takes them from the plan's image for the CPU.)
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "runtime/base/Status.h"
#include "runtime/device/InstructionTable.h"
#include "runtime/device/cuda/Gpu.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

class FusedKernels {
 public:
  // Chooses the image and loads all of it, so that no step meets a kernel that cannot be loaded.
  static Expected<std::unique_ptr<FusedKernels>> load(const plan::Plan& plan, const Gpu& gpu);
  virtual ~FusedKernels() = default;
  // The target of the image, for the log; empty if the plan has no kernels.
  virtual std::string target() const = 0;
  // Enqueues a launch; arguments[i] points to the address of operand i.
  virtual Status launch(const ResolvedInstruction& launch, void** arguments, cudaStream_t stream) const = 0;
};

}  // namespace sheaf::cuda
