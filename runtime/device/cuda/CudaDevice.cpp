// The device of libsheaf_cuda.so.
#include <cuda_runtime_api.h>

#include "runtime/base/Text.h"
#include "runtime/device/Device.h"

namespace sheaf::cuda {
namespace {

class CudaDevice : public Device {
 public:
  Expected<std::vector<std::unique_ptr<RankContext>>> open(const plan::Plan& plan,
                                                           const DeviceOptions& options) override {
    int count = 0;
    if (cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0)
      return Status::error(cat("there is no CUDA device: ", cudaGetErrorString(error)));
    return std::vector<std::unique_ptr<RankContext>>();
  }
};

}  // namespace
}  // namespace sheaf::cuda

extern "C" __attribute__((visibility("default"))) sheaf::Device* sheaf_open_device() {
  static sheaf::cuda::CudaDevice device;
  return &device;
}
