// The analysis of train-globalize-loss: what every value of one rank's step is to that of the global batch.
#pragma once

#include "ir/Train/BatchNorm.h"
#include "ir/Train/Outputs.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/train/EqualRows.h"
#include "passes/train/RowMask.h"

namespace sheaf::train {

// Classifies every value of a step forward, op by op, and rewrites the step as it goes: sums over the batch make terms,
// linear ops keep terms, and any other op that needs the global value gets train.global_sum.
class Globalizer {
 public:
  // rowsKnown: ops say where the batch is (FollowRows.h). Otherwise that is found by sizes, and fixedRows says that an
  // input of the graph has a fixed number of rows, so constants may differ from row to row.
  Globalizer(mlir::func::FuncOp step, int64_t ranks, bool rowsKnown, bool fixedRows)
      : step(step), ranks(ranks), rowsKnown(rowsKnown), fixedRows(fixedRows), builder(step.getContext()), mask(step) {}

  // Failure: an error has been reported at the op that cannot be divided among ranks.
  mlir::LogicalResult run();

  // After run(): of the values that the step had and of new ones.
  const BatchStates& valueStates() const { return states; }
  // To call before run(): states of the results of reshapes, from the analysis with two rows.
  void setReshapeStates(BatchStates states) { reshapeStates = std::move(states); }

 private:
  mlir::func::FuncOp step;
  int64_t ranks, rows = 0;
  bool rowsKnown, fixedRows;
  mlir::OpBuilder builder;
  RowMask mask;  // of the evaluation
  BatchStates states, reshapeStates;
  mlir::DenseMap<mlir::Value, mlir::Value> sums;  // train.global_sum of a partial value
  mlir::DenseSet<mlir::Value> leading;            // whose batch, if they have one, is their first dimension

  BatchState of(mlir::Value v) const { return states.lookup(v); }
  bool anyPartial(mlir::Operation* op) const;
  bool anySplit(mlir::Operation* op) const;

  // Some ops have samples in their first dimension, and what is computed from equal indices has them there, too.
  static bool takesSamples(mlir::Operation* op);
  static BatchState leadingOf(const BatchState& state) { return BatchState::split({0}, state.rows, state.minor); }
  void findLeading(mlir::Block& body);

  // The op reads the global value of its partial operands, from operand `first` on.
  mlir::LogicalResult sumPartialOperands(mlir::Operation* op, unsigned first = 0);

  // A value that is the same on all ranks, as one of `ranks` equal terms of itself.
  void shareOperand(mlir::OpOperand& operand);

  mlir::FailureOr<BatchState> visit(mlir::Operation* op);
  // The state of a result, if `found` is what its op makes of the operands' states and the op says where the batch is.
  mlir::FailureOr<BatchState> known(mlir::OpResult result, const BatchState& found);
  mlir::FailureOr<BatchState> visitReduce(ReduceOp op);
  mlir::FailureOr<BatchState> visitReshape(ReshapeOp op);
  mlir::FailureOr<BatchState> visitConcat(ConcatOp op);
  mlir::FailureOr<BatchState> visitMatMul(MatMulOp op);
  mlir::FailureOr<BatchState> visitGather(GatherOp op);
  mlir::FailureOr<BatchState> visitScatterAdd(ScatterAddOp op);
  mlir::FailureOr<BatchState> visitGatherElements(GatherElementsOp op);
  mlir::FailureOr<BatchState> visitScatter(ScatterOp op);
  mlir::FailureOr<BatchState> visitLoss(LossOp op);
  mlir::FailureOr<BatchState> visitOutput(OutputOp op);
  void maskOperand(mlir::OpOperand& operand, const BatchState& state);
  void maskOperand(mlir::OpOperand& operand) { maskOperand(operand, of(operand.get())); }
  mlir::FailureOr<BatchState> visitUpdate(UpdateOp op);
  mlir::FailureOr<BatchState> visitBatchNorm(BatchNormOp op);
  mlir::FailureOr<BatchState> visitAdditive(mlir::Operation* op);
  mlir::FailureOr<BatchState> visitScaling(mlir::Operation* op, bool divides);
  mlir::FailureOr<BatchState> visitElementwise(mlir::Operation* op);

  // Whether one of the given dimensions holds the batch; failure where that is unknown.
  mlir::FailureOr<bool> holdBatch(mlir::Operation* op, const BatchState& state, mlir::ArrayRef<int64_t> dimensions);

  // For an op that acts on the given dimensions of its first operand and keeps the others in place.
  mlir::FailureOr<BatchState> visitAlong(mlir::Operation* op, mlir::ArrayRef<int64_t> dimensions);
  mlir::FailureOr<BatchState> visitLastDimension(mlir::Operation* op);
  // For an op that computes each leading row by itself, in every split operand and in its results.
  mlir::FailureOr<BatchState> visitPerSample(mlir::Operation* op);

  mlir::LogicalResult unsupported(mlir::Operation* op, const llvm::Twine& what);
  mlir::LogicalResult crossesRows(mlir::Operation* op);
  mlir::LogicalResult unknownBatch(mlir::Operation* op);
  mlir::LogicalResult mixes(mlir::Operation* op);
};

}  // namespace sheaf::train
