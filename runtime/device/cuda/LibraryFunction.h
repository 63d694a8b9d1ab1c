// The library calls of runtime/plan/Library.h on a GPU: made once per call when a plan is opened, enqueued every step.
// What is enqueued can be captured in a CUDA graph: it allocates nothing, waits for nothing, and takes what changes
// from step to step from device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/Status.h"
#include "runtime/plan/Library.h"

namespace sheaf::cuda {

class Blas;  // a rank's cuBLASLt handle, and the algorithms chosen so far

// Errors in data that kernels find: the first one of a rank is kept, by compare and swap from 0, and read by the
// host when it synchronizes.
enum class Finding : uint32_t { kNone = 0, kIndexOutOfRange = 1 };

// What a call works on.
struct Invocation {
  cudaStream_t stream;
  std::byte* const* operands;  // device addresses, in the order of the call
  std::byte* scratch;          // the call's device_scratch bytes, or null
  int64_t piece;               // of the global batch, whose rows the rank has
  const int64_t* step;         // in device memory
  uint64_t* finding;           // in device memory: Finding in the low half, `instruction` in the high half
  uint32_t instruction;        // number of the instruction, for findings

  // By plan::operandIndex; null for an operand that the call does without.
  template <typename T>
  T* operand(int index) const {
    return index < 0 ? nullptr : reinterpret_cast<T*>(operands[index]);
  }
};

class LibraryFunction {
 public:
  virtual ~LibraryFunction() = default;
  virtual Status enqueue(const Invocation& invocation) const = 0;
};

// The function of a call that checkLibraryCall accepts; an error if it has none, or none on a GPU. Chooses algorithms.
Expected<std::unique_ptr<const LibraryFunction>> makeLibraryFunction(const plan::Instruction& instruction, int64_t seed,
                                                                     Blas& blas);

}  // namespace sheaf::cuda
