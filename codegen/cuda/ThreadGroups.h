// What the threads of a block do together: barriers, exchanges within a warp, and memory that they share.
#pragma once

#include "codegen/cuda/Mapping.h"
#include "codegen/fusion/KernelMemory.h"
#include "ir/Train/TrainDialect.h"

namespace sheaf::codegen {

class ThreadGroups {
 public:
  // `thread` is the index in the block, an i64; `shared` the address of the block's shared memory.
  ThreadGroups(ArithBuilder& arith, const Mapping& mapping, mlir::Value thread, mlir::Value shared)
      : a(arith), mapping(mapping), thread(thread), shared(shared) {}

  // Every thread of a group gets the combination of the scalars that the group's threads have, the same in each. In a
  // loop, a barrier() must stand between two rounds if the loop has no other reduction.
  void reduce(llvm::ArrayRef<train::ReduceOp> reductions, llvm::MutableArrayRef<mlir::Value> values);
  // The threads of the first group get the sums, over all groups, of what the threads at their place have; those of
  // other groups are left with something else. Values are floats, scalars or vectors.
  void sumOverGroups(llvm::MutableArrayRef<mlir::Value> values);

  void barrier();
  // Waits until all threads that share a row are here.
  void barrierOfGroup();

  // Of shared memory, that what has been emitted so far uses.
  int64_t sharedBytes() const { return bytes; }

 private:
  mlir::Value integer(int64_t value);
  mlir::Value exchange(mlir::Value value, int64_t distance);
  // Shared memory from an offset on as a tensor of such elements.
  Buffer sharedBuffer(int64_t offset, mlir::Type element);
  void when(mlir::Value condition, llvm::function_ref<void()> body);
  void sumBatch(llvm::MutableArrayRef<mlir::Value> values, int64_t offset);

  ArithBuilder& a;
  const Mapping& mapping;
  mlir::Value thread, shared;
  int64_t bytes = 0, reserved = 0;  // in use at most, and by reductions
};

}  // namespace sheaf::codegen
