// What the code of a kernel does with its operands: plan.proto's Kernel.operand_access and in_place, from the code
// itself.
#pragma once

#include <cstdint>

#include "codegen/fusion/KernelMemory.h"
#include "codegen/fusion/RowProgram.h"
#include "llvm/ADT/SmallVector.h"

namespace sheaf::codegen {

// Of a fusion's operands in order, then its results.
struct KernelOperands {
  llvm::SmallVector<int64_t> access, inPlace;  // as in plan.proto

  // Makes it what holds for this code and for that of another target.
  void join(const KernelOperands& other);
};

// Follows every load and store of `code`, which has been emitted for the program and is not lowered yet, to the pointer
// that it comes from. An operand that is not touched counts as read. A result that the code clears before it adds to it
// (partial sums of columns) is written: what was there before does not matter.
KernelOperands operandsOf(const RowProgram& program, mlir::Operation* code, llvm::ArrayRef<Buffer> operands,
                          llvm::ArrayRef<Buffer> results);

}  // namespace sheaf::codegen
