// Widens the ops of a leaf's program, one after the other. See WidenLeaves.cpp.
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/LeafValues.h"
#include "passes/train/OpCheck.h"

namespace sheaf::train {

class OutputOp;

class Widener {
 public:
  // A rank has `leaves` leaves of `leafRows` rows each. With a `check` every op that has the rows of all leaves is
  // tried.
  Widener(mlir::func::FuncOp function, int64_t leaves, int64_t leafRows, OpCheck* check = nullptr);

  // Fails with an error at an op that a rank cannot compute for several leaves.
  mlir::LogicalResult run();

 private:
  using MaybeRows = LeafValues::MaybeRows;

  mlir::LogicalResult addArguments(mlir::Block& body, mlir::Block& fresh);
  void enterGroup(mlir::Operation* first);
  void leaveGroup();
  mlir::LogicalResult visit(mlir::Operation* op);
  mlir::Value sideBySide(mlir::Operation* user, mlir::Value v, LeafRows rows);
  mlir::LogicalResult visitOutput(OutputOp op);
  void visitReplicated(mlir::Operation* op);
  void addUp(mlir::Operation* op);
  void gatherRows(GatherRowsOp op);
  void draw(mlir::Operation* op);

  // The op once for each leaf; of a kernel's op, in a kernel of the leaf's own after the one that has all leaves.
  void eachLeaf(mlir::Operation* op);
  void perLeaf(mlir::Operation* op, mlir::ArrayRef<MaybeRows> resultRows);

  // The op once, on the rows of all leaves. False: it is to be computed leaf by leaf.
  bool tryWiden(mlir::Operation* op);
  bool widen(mlir::Operation* op, mlir::ArrayRef<MaybeRows> operandRows, LeafRows rows);
  bool widenAll(mlir::Operation* op, LeafRows rows);
  bool widenReshape(ReshapeOp op);
  bool widenReduce(ReduceOp op);
  bool widenMatMul(mlir::Operation* op, mlir::Value lhs, mlir::Value rhs, bool transposeA, bool transposeB);
  bool widenGather(GatherOp op);
  bool widenScatterAdd(ScatterAddOp op);

  // Where the rows of the first split operand are.
  LeafRows rowsOfOperands(mlir::Operation* op) const;

  // That `made` computes for all leaves what `op` does for one.
  void note(mlir::Operation* op, mlir::Operation* made, mlir::ArrayRef<MaybeRows> operands, LeafRows rows);

  mlir::func::FuncOp function;
  const int64_t leaves, leafRows;
  mlir::OpBuilder builder;
  OpCheck* check;
  std::vector<OpPair> pairs;
  LeafValues values;
  // By group: a leaf's columns if the last dimension has the rows, else 0.
  llvm::DenseMap<mlir::Attribute, int64_t> rowsInColumns;
  llvm::DenseSet<mlir::Operation*> done;         // of the group that is being visited
  mlir::SmallVector<mlir::Operation*> deferred;  // of that group: what is computed leaf by leaf
};

}  // namespace sheaf::train
