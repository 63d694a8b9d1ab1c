// Emits the values of a row program: what any kernel of it computes, whatever loops it stands in. The kernels of a
// target derive from this class and add the loops, the reductions and the stores.
#pragma once

#include "codegen/fusion/ElementOps.h"
#include "codegen/fusion/KernelMemory.h"
#include "codegen/fusion/RowProgram.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace sheaf::codegen {

class RowEmitter {
 protected:
  // A value of the fusion at a row: the row is the index, in the kernel, of the value's own row.
  using AtRow = std::pair<mlir::Value, mlir::Value>;

  // Some columns of a row, as many as a vector has lanes, and the values known there.
  struct Chunk {
    Chunk(mlir::Value column, mlir::Value mask) : column(column), mask(mask) {}
    mlir::Value column;
    mlir::Value mask;  // a bit for each lane; null where all lanes are columns
    llvm::DenseMap<AtRow, mlir::Value> values;
  };

  RowEmitter(const RowProgram& program, ArithBuilder& arith, Lanes lanes)
      : program(program), a(arith), memory(arith, lanes) {}

  mlir::Value index(int64_t value) { return a.integer(a.b.getI64Type(), value); }
  mlir::VectorType vectorType(mlir::Type element) { return mlir::VectorType::get({memory.lanes.count}, element); }
  mlir::Type computeTypeOf(mlir::Value v);
  // The index in memory of a row's column.
  mlir::Value indexOf(const Buffer& buffer, mlir::Value row, mlir::Value column) {
    return a.add(a.mul(row, index(buffer.pitch)), column);
  }
  // offset, offset + 1, ... in every lane.
  mlir::Value laneIndices(mlir::Value offset, mlir::Type element);
  // What a result is rounded from: the store rounds.
  mlir::Value beforeRounding(mlir::Value v);

  // The value of a row, or of a chunk of it. In a flat program every operand of one element is that of any row, and a
  // chunk's column is the index of its first element.
  mlir::Value scalar(mlir::Value v, mlir::Value row);
  mlir::Value vector(Chunk& chunk, mlir::Value v, mlir::Value row);
  // Emits the scalars that the vector code of `v` reads where the builder stands, outside of the loop over the columns:
  // inside, stores that may overlap would keep the compiler from hoisting their loads.
  void prepare(mlir::Value v, mlir::Value row, llvm::DenseSet<AtRow>& seen);
  // All those of a pass over the columns.
  void preparePass(int64_t pass, mlir::Value row);

  mlir::scf::ForOp forLoop(mlir::Value from, mlir::Value to, int64_t step, mlir::ValueRange init,
                           llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::Value, mlir::ValueRange)> body);

  const RowProgram& program;
  ArithBuilder& a;
  KernelMemory memory;
  llvm::SmallVector<Buffer> operands, results;
  // The values known for the current row; cleared for the next.
  llvm::DenseMap<AtRow, mlir::Value> scalars;
  llvm::DenseMap<std::pair<mlir::Operation*, mlir::Value>, mlir::Value> sourceRows;

 private:
  mlir::Value constantOf(train::ConstantOp op, mlir::Type type);
  mlir::Value sourceRow(train::BroadcastOp op, mlir::Value row);
  mlir::Value outerIndex(train::IotaOp op, mlir::Value row);
  mlir::Value compareWithColumn(Chunk& chunk, train::CompareOp op, mlir::Value row);
};

}  // namespace sheaf::codegen
