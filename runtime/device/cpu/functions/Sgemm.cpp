#include "runtime/device/cpu/functions/Sgemm.h"

#include <cstdlib>

#include "runtime/device/cpu/simd/Loops.h"
#include "runtime/device/cpu/simd/Sgemm.h"

namespace sheaf::cpu {
namespace {

// Memory for packed operands that a thread keeps from product to product.
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { std::free(memory_); }

  // Null if there is no memory.
  float* get(size_t bytes) {
    if (bytes <= bytes_) return memory_;
    constexpr size_t kLine = 64;
    std::free(memory_);
    bytes_ = (bytes + kLine - 1) / kLine * kLine;
    memory_ = static_cast<float*>(std::aligned_alloc(kLine, bytes_));
    if (!memory_) bytes_ = 0;
    return memory_;
  }

 private:
  float* memory_ = nullptr;
  size_t bytes_ = 0;
};

thread_local Room room;

}  // namespace

bool usesOwnProducts() {
  static const bool own = &loops() == &simd::loopsV3;
  return own;
}

plan::GemmTile sgemmTile(int64_t m, int64_t n, int64_t k, int64_t batch, bool transposeA, bool transposeB,
                         int threads) {
  return usesOwnProducts() ? plan::threadTile(m, n, k, batch, transposeA, transposeB, threads)
                           : plan::gemmTile(m, n, k, batch, transposeA, transposeB, false);
}

dnnl_status_t sgemm(bool transposeA, bool transposeB, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                    int64_t lda, const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc) {
  if (!usesOwnProducts())
    return dnnl_sgemm(transposeA ? 'T' : 'N', transposeB ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb,
                      accumulate ? 1 : 0, c, ldc);
  float* packed = room.get(plan::sgemmRoom(m, n, k));
  if (!packed) return dnnl_out_of_memory;
  simd::sgemmV3({transposeA, transposeB, m, n, k, alpha, a, lda, b, ldb, accumulate, c, ldc}, packed);
  return dnnl_success;
}

}  // namespace sheaf::cpu
