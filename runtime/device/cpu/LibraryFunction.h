// The library calls of runtime/plan/Library.h on the CPU: made once per call, run every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/Status.h"
#include "runtime/device/cpu/ComputePool.h"
#include "runtime/plan/Library.h"

namespace sheaf::cpu {

// What a run of a call works on.
struct Invocation {
  ComputePool& pool;
  std::byte* const* operands;  // addresses, in the order of the call
  std::byte* scratch;          // scratchPerThread bytes for each thread of the pool, or null
  int64_t piece;               // of the global batch, whose rows the rank has
  int64_t step;

  // By plan::operandIndex; null for an operand that the call does without.
  template <typename T>
  T* operand(int index) const {
    return index < 0 ? nullptr : reinterpret_cast<T*>(operands[index]);
  }
};

class LibraryFunction {
 public:
  virtual ~LibraryFunction() = default;
  virtual Status run(const Invocation& invocation) const = 0;
};

// What is known of a call besides its attributes.
struct CallSite {
  const plan::Instruction& instruction;  // for its operands' bytes and its scratch
  int64_t seed;                          // the seed of the plan

  int64_t operandBytes(int index) const {
    return index < instruction.operands_size() ? static_cast<int64_t>(instruction.operands(index).bytes()) : 0;
  }
  int64_t scratchPerThread() const { return static_cast<int64_t>(instruction.call().scratch_per_thread()); }
};

using Function = std::unique_ptr<const LibraryFunction>;

// The function of a call that checkLibraryCall accepts; an error if its attributes are not those of a call.
Expected<Function> makeLibraryFunction(const plan::Instruction& instruction, int64_t seed);

// The maker of each call, in the files of functions/.
Function makeFunction(const plan::GemmCall& call, const CallSite& site);
Function makeFunction(const plan::AttentionCall& call, const CallSite& site);
Function makeFunction(const plan::AttentionGradCall& call, const CallSite& site);
Function makeFunction(const plan::GatherCall& call, const CallSite& site);
Function makeFunction(const plan::ScatterAddCall& call, const CallSite& site);
Function makeFunction(const plan::ScatterCall& call, const CallSite& site);
Function makeFunction(const plan::TopKCall& call, const CallSite& site);
Function makeFunction(const plan::CopyCall& call, const CallSite& site);
Function makeFunction(const plan::ZeroCall& call, const CallSite& site);
Function makeFunction(const plan::SumPartialsCall& call, const CallSite& site);
Function makeFunction(const plan::CumSumCall& call, const CallSite& site);
Function makeFunction(const plan::SquareSumCall& call, const CallSite& site);
Function makeFunction(const plan::GradientNormCall& call, const CallSite& site);
Function makeFunction(const plan::UpdateScalarCall& call, const CallSite& site);
Function makeFunction(const plan::AdvanceLossScaleCall& call, const CallSite& site);
Function makeFunction(const plan::DropoutCall& call, const CallSite& site);
Function makeFunction(const plan::RandomUniformCall& call, const CallSite& site);
Function makeFunction(const plan::ConvCall& call, const CallSite& site);
Function makeFunction(const plan::ConvGradInputCall& call, const CallSite& site);
Function makeFunction(const plan::ConvGradFilterCall& call, const CallSite& site);
Function makeFunction(const plan::MaxPoolCall& call, const CallSite& site);
Function makeFunction(const plan::MaxPoolIndicesCall& call, const CallSite& site);
Function makeFunction(const plan::MaxPoolGradCall& call, const CallSite& site);

// A product of bf16 or f16; makeFunction of a gemm calls it.
Function makeHalfGemm(const plan::GemmCall& call, const CallSite& site);

}  // namespace sheaf::cpu
