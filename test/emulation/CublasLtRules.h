// Which products the real cuBLASLt takes, and what it answers otherwise: of its rules those that our calls could break.
// docs/cuda-emulation.md has the source of each.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "test/emulation/CublasLtProduct.h"

namespace sheaf::emulation {

struct Answer {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const char* why = "";
};
inline Answer invalid(const char* why) {
  return {CUBLAS_STATUS_INVALID_VALUE, why};
}
inline Answer unsupported(const char* why) {
  return {CUBLAS_STATUS_NOT_SUPPORTED, why};
}

// As many bytes as kernels load at a time; more alignment is of no use to them.
constexpr uint64_t kMostAlignment = 16;
constexpr uint64_t kWorkspaceAlignment = 256;

inline uint64_t alignmentOf(const void* address) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(address) | kMostAlignment;
  return bits & (~bits + 1);
}

// What is stored in a cublasLtMatmulAlgo_t. An algorithm is for operands of its types, with its alignments.
struct Algorithm {
  enum Operand { kA, kB, kC, kD, kVector, kMatrix, kOperands };
  static constexpr uint64_t kMagic = 0x5ea7b1a5, kCount = 2;

  uint64_t magic = kMagic, number = 0;
  uint32_t type = 0, tf32 = 0;
  uint64_t workspace = 0;  // bytes that it needs
  std::array<uint32_t, kOperands> alignments{};
  // Random. The header says that an algorithm can be stored and restored as it is, not that equal ones have equal
  // bytes.
  uint64_t unused = 0;

  bool known() const { return magic == kMagic && number < kCount; }
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

inline Algorithm algorithmOf(const cublasLtMatmulAlgo_t* stored) {
  return stored ? std::bit_cast<Algorithm>(*stored) : Algorithm{.magic = 0};
}

// Rules of a product that hold wherever its operands are.
inline Answer checkProduct(const Operation& operation, const Layout& a, const Layout& b, const Layout& c,
                           const Layout& d) {
  const bool transposeA = operation.a == CUBLAS_OP_T, transposeB = operation.b == CUBLAS_OP_T;
  if (c.type != d.type) return invalid("C and D differ in type");
  if (c.rows != d.rows || c.columns != d.columns) return invalid("C and D differ in size");
  for (const Layout& layout : {a, b, c, d}) {
    if (layout.leading < layout.rows) return invalid("a leading dimension is less than the number of rows");
    if (layout.batch != d.batch || layout.batch < 1) return invalid("the numbers of batches differ");
  }
  if ((transposeA ? a.rows : a.columns) != (transposeB ? b.columns : b.rows))
    return invalid("A and B differ in their inner dimension");
  if ((transposeA ? a.columns : a.rows) != d.rows || (transposeB ? b.rows : b.columns) != d.columns)
    return invalid("the outer dimensions of A and B are not those of D");
  if (operation.hasVector() != (operation.vector != nullptr))
    return invalid(operation.vector ? "the epilogue takes no bias pointer" : "the epilogue needs a bias pointer");
  if (operation.hasVector() && reinterpret_cast<uintptr_t>(operation.vector) % d.elementBytes() != 0)
    return invalid("the bias pointer is not aligned to D's type");
  if (operation.hasMatrix()) {
    if (!operation.matrix) return invalid("the epilogue needs a pointer to its auxiliary matrix");
    if (operation.leading < d.rows || operation.leading % 8 != 0)
      return invalid("the auxiliary matrix's leading dimension is less than D's rows, or no multiple of 8");
  }
  if (operation.sumsA() && transposeA) return unsupported("BGRADA takes a non-transposed A");
  if (operation.sumsB() && !transposeB) return unsupported("BGRADB takes a transposed B");
  if (a.type != b.type || a.type != d.type || (a.type != CUDA_R_32F && a.type != CUDA_R_16BF && a.type != CUDA_R_16F))
    return unsupported("these types do not go together");
  if (operation.tf32 && a.type != CUDA_R_32F) return unsupported("TF32 is for operands in f32");
  if (operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d.batch > 1)
    return unsupported("the double has no epilogues of batches");
  return {};
}

// Rules of a call: where its operands and its workspace lie.
inline Answer checkCall(const Product& product, const Algorithm& algorithm, const void* workspace,
                        uint64_t workspaceBytes) {
  if (!product.result) return invalid("D is null");
  if (!product.left || !product.right) return invalid("A or B is null");
  if (product.beta != 0 && !product.before) return invalid("C is null and beta is not 0");
  if (product.before == product.result && !(product.c == product.d))
    return invalid("C lies where D does, and has another layout");
  if (!workspace && workspaceBytes > 0) return invalid("the workspace is null");
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    return invalid("the workspace does not start at a multiple of 256 bytes");
  if (workspaceBytes < algorithm.workspace) return invalid("the workspace is smaller than the algorithm needs");
  if (algorithm.type != static_cast<uint32_t>(product.a.type) || algorithm.tf32 != product.operation.tf32)
    return invalid("the algorithm is for other types");
  const void* const operands[] = {
      product.left, product.right, product.before, product.result, product.operation.vector, product.operation.matrix};
  for (int i = 0; i < Algorithm::kOperands; ++i)
    if (operands[i] && alignmentOf(operands[i]) < algorithm.alignments[static_cast<size_t>(i)])
      return unsupported("an operand is less aligned than was said when the algorithm was chosen");
  return {};
}

}  // namespace sheaf::emulation
