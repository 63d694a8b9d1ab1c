// A train.fusion as a row program: what a kernel does for each row of the iteration space, in how many passes.
//
// A row is `columns` elements long. Values with one element per row and column are *vectors*, values with one element
// per row are *scalars* (of that row). A row reduction turns a vector into a scalar and ends a pass: what depends on
// its result is computed in a later pass over the same row, whose operands by then lie in the cache. Everything that
// has one element per row and column is written in the last pass, after all the reads at the same index, so a result
// may share memory with an operand that is read at the index being written only.
#pragma once

#include "ir/Train/TrainDialect.h"

namespace sheaf::codegen {

enum class OutputKind {
  Element,        // one element per row and column
  Row,            // one element per row
  ColumnPartial,  // column sums: one row per block of rows
};

struct RowOutput {
  OutputKind kind;
  mlir::Value value;  // what is written; for column partials, what is summed
};

struct RowProgram {
  train::FusionOp fusion;
  int64_t rows, columns, block;
  // Without reductions and but for operands of one element, rows and columns do not matter: the kernel runs over
  // `elements` indices, row r being the indices from r * columns on (the last row may be shorter).
  bool flat = false;
  int64_t elements = 0;

  // Elements from one row to the next of each operand and each result: `columns` where they are dense, and for what has
  // fewer.
  llvm::SmallVector<int64_t> operandPitches, resultPitches;
  llvm::SmallVector<RowOutput> outputs;                              // one per result
  llvm::SmallVector<llvm::SmallVector<train::ReduceOp>> reductions;  // row reductions by pass; may end with empty ones
  bool hasColumnPartials = false;

  // Whether the value has an element for each column (else one per row, or one at all).
  bool isVector(mlir::Value value) const;
  int64_t passes() const { return static_cast<int64_t>(reductions.size()); }

  // A diagnostic at the fusion and failure if it is not a row program.
  static mlir::FailureOr<RowProgram> analyze(train::FusionOp fusion);
};

// Whether a reduction runs over the last dimension only (else, over all outer dimensions: a column reduction).
bool isRowReduction(train::ReduceOp op);

// Equal for fusions that are the same but for names, locations and whose operands they are applied to.
std::string structuralKey(train::FusionOp fusion);

}  // namespace sheaf::codegen
