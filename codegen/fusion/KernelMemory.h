// Loads and stores of tensor elements, one or a vector of lanes at a time, in the `llvm` dialect.
#pragma once

#include "codegen/fusion/ArithBuilder.h"

namespace sheaf::codegen {

// A tensor in memory, dense but for its rows, which start `pitch` elements apart. Booleans are bytes. `element` is the
// tensor's element type in any context. `invariant`: not written while the kernel runs.
struct Buffer {
  mlir::Value pointer;
  mlir::Type element;
  int64_t pitch = 0;
  bool invariant = false;
};

// The elements that are loaded and stored together. `aligned`: every vector starts at a multiple of its bytes, or of 16
// if it has more; else an element does.
struct Lanes {
  int64_t count;
  bool aligned;
};

class KernelMemory {
 public:
  KernelMemory(ArithBuilder& arith, Lanes lanes) : lanes(lanes), a(arith) {}

  // The element at `index`, or as many as there are lanes from there, as values of the compute type. With a mask, lanes
  // whose bit is clear are zero and their memory is not touched.
  mlir::Value loadScalar(const Buffer& buffer, mlir::Value index);
  mlir::Value loadVector(const Buffer& buffer, mlir::Value index, mlir::Value mask);
  void storeScalar(const Buffer& buffer, mlir::Value index, mlir::Value value);
  void storeVector(const Buffer& buffer, mlir::Value index, mlir::Value value, mlir::Value mask);

  Lanes lanes;

 private:
  mlir::Type memoryType(mlir::Type element);
  unsigned vectorAlignment(mlir::Type memory);
  mlir::Value address(const Buffer& buffer, mlir::Value index);
  mlir::Value fromMemory(mlir::Value value, mlir::Type element);
  mlir::Value toMemory(mlir::Value value, mlir::Type element);

  ArithBuilder& a;
};

}  // namespace sheaf::codegen
