// Loads and stores of tensor elements, one or a vector of lanes at a time, in the `llvm` dialect.
#pragma once

#include "codegen/fusion/ArithBuilder.h"

namespace sheaf::codegen {

// The number of elements in a vector, whatever the element type and the target: the order of sums depends on it.
inline constexpr int64_t kLanes = 16;

// A dense tensor in memory. Booleans are bytes. `element` is the tensor's element type in any context.
struct Buffer {
  mlir::Value pointer;
  mlir::Type element;
};

class KernelMemory {
 public:
  explicit KernelMemory(ArithBuilder& arith) : a(arith) {}

  // The element at `index`, or kLanes elements from there, as values of the compute type. With a mask, lanes whose bit
  // is clear are zero and their memory is not touched.
  mlir::Value loadScalar(const Buffer& buffer, mlir::Value index);
  mlir::Value loadVector(const Buffer& buffer, mlir::Value index, mlir::Value mask);
  void storeScalar(const Buffer& buffer, mlir::Value index, mlir::Value value);
  void storeVector(const Buffer& buffer, mlir::Value index, mlir::Value value, mlir::Value mask);

 private:
  mlir::Type memoryType(mlir::Type element);
  mlir::Value address(const Buffer& buffer, mlir::Value index);
  mlir::Value fromMemory(mlir::Value value, mlir::Type element);
  mlir::Value toMemory(mlir::Value value, mlir::Type element);

  ArithBuilder& a;
};

}  // namespace sheaf::codegen
