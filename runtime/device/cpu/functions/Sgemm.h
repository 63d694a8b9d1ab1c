// oneDNN's matrix product on one thread.
#pragma once

#include <dnnl.h>

#include <atomic>
#include <cstdint>

#include "runtime/base/Status.h"

namespace sheaf::cpu {

// c = alpha * op(a) op(b) + beta * c, row-major, op(a) [m, k], op(b) [k, n]; with beta 0, c is not read.
inline dnnl_status_t sgemm(bool transposeA, bool transposeB, int64_t m, int64_t n, int64_t k, float alpha,
                           const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
                           int64_t ldc) {
  return dnnl_sgemm(transposeA ? 'T' : 'N', transposeB ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

// Collects the failures of a call's tiles, from any thread.
class SgemmFailure {
 public:
  void note(dnnl_status_t status) {
    if (status != dnnl_success) status_.store(status, std::memory_order_relaxed);
  }
  Status status() const {
    switch (status_.load(std::memory_order_relaxed)) {
      case dnnl_success:
        return Status();
      case dnnl_out_of_memory:
        return Status::error("oneDNN could not allocate its packing buffers");
      default:
        return Status::error("oneDNN refused a matrix product");
    }
  }

 private:
  std::atomic<dnnl_status_t> status_ = dnnl_success;
};

}  // namespace sheaf::cpu
