#include "runtime/device/cuda/kernels/LossScale.h"

#include "runtime/device/cuda/Launch.h"

namespace sheaf::cuda {
namespace {

__global__ void updateScalarKernel(plan::UpdateScalar kind, double value, const double* state, const float* rate,
                                   float* result) {
  *result = plan::updateScalar(kind, value, state, rate);
}

__global__ void advanceKernel(const plan::LossScaleRule rule, const float* scalars, double* state) {
  plan::advanceLossScale(rule, scalars[1] != 0, state);
}

}  // namespace

cudaError_t updateScalar(cudaStream_t stream, plan::UpdateScalar kind, double value, const double* state,
                         const float* rate, float* result) {
  return launch(updateScalarKernel, {dim3(1), dim3(1)}, stream, kind, value, state, rate, result);
}

cudaError_t advanceLossScale(cudaStream_t stream, const plan::LossScaleRule& rule, const float* scalars,
                             double* state) {
  return launch(advanceKernel, {dim3(1), dim3(1)}, stream, rule, scalars, state);
}

}  // namespace sheaf::cuda
