// CUDA's errors as Status values.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/base/Status.h"
#include "runtime/base/Text.h"

namespace sheaf::cuda {

// `what` says what was tried, as in "cannot allocate the arena".
inline Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // what is reported here is not to be found by the next call
  return Status::error(cat(what, ": ", cudaGetErrorString(error), " (CUDA error ", static_cast<int>(error), ")"));
}

}  // namespace sheaf::cuda
