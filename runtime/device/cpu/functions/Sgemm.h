// f32 matrix products on one thread: on AVX2 Sheaf's own (simd/Sgemm.h), otherwise oneDNN's.
#pragma once

#include <dnnl.h>

#include <atomic>
#include <cstdint>

#include "runtime/base/Status.h"
#include "runtime/plan/Tiles.h"

namespace sheaf::cpu {

// True if products are Sheaf's own: their bits depend on k alone, and not on tiles. The processor, or
// ONEDNN_MAX_CPU_ISA, offers AVX2 and no AVX-512.
bool usesOwnProducts();

// Returns the tile of an f32 product, which is a call of sgemm().
plan::GemmTile sgemmTile(int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB, int threads);

// c = alpha * op(a) op(b), or c += alpha * op(a) op(b); row-major, op(a) [m, k], op(b) [k, n].
dnnl_status_t sgemm(bool transposeA, bool transposeB, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                    int64_t lda, const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc);

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
        return Status::error("there is no memory for the packed operands of a matrix product");
      default:
        return Status::error("oneDNN refused a matrix product");
    }
  }

 private:
  std::atomic<dnnl_status_t> status_ = dnnl_success;
};

}  // namespace sheaf::cpu
