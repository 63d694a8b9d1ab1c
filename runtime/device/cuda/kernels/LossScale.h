// update_scalar and advance_loss_scale (runtime/plan/calls/LossScale.h), by one thread.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/plan/calls/LossScaleState.h"

namespace sheaf::cuda {

cudaError_t updateScalar(cudaStream_t stream, plan::UpdateScalar kind, double value, const double* state,
                         const float* rate, float* result);

cudaError_t advanceLossScale(cudaStream_t stream, const plan::LossScaleRule& rule, const float* scalars, double* state);

}  // namespace sheaf::cuda
