// From the forward program of the global batch to that of one leaf. See Partition.cpp.
#pragma once

#include <vector>

#include "ir/Train/BatchNorm.h"
#include "ir/Train/OpAxes.h"
#include "ir/Train/Outputs.h"
#include "ir/Train/Place.h"
#include "llvm/ADT/DenseMap.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "passes/train/OpCheck.h"
#include "passes/train/RowMask.h"

namespace sheaf::train {

// A value that every leaf has whole, since an op needs more of it than the leaf's part.
struct GatheredValue {
  mlir::Location at;  // the op that needs it
  int64_t bytes = 0;
};

class Partitioner {
 public:
  // The batch is divided among `leaves`. `parts`, a multiple of them, is in how many equal parts values are followed:
  // the leaves, or all rows of the batch, where the step's row mask says for each whether it counts.
  Partitioner(mlir::func::FuncOp step, int64_t leaves, int64_t parts);

  // Rewrites @step. With a `check` every op is tried. Failure: an error has been reported at an op.
  mlir::LogicalResult run(OpCheck* check = nullptr);

  // After run(). Values that were gathered.
  const std::vector<GatheredValue>& gathered() const { return gatheredValues; }
  // After run(). Ops that every leaf computes for all rows.
  const std::vector<mlir::Operation*>& repeated() const { return repeatedOps; }
  // True if rows depend on each other, so that no row may be left out.
  bool rowsDepend() const { return dependent; }

 private:
  // The same on all leaves; divided among them; or the leaves' values are the terms of a sum in the order of the tree.
  struct State {
    enum Kind { Whole, Split, Partial } kind = Whole;
    Place place;          // if it is split
    bool chosen = false;  // the place is not where the rows of the inputs are, but was chosen
  };

  State stateOf(mlir::Value v) const { return states.lookup(v); }
  bool isSplit(mlir::Value v) const { return stateOf(v).kind == State::Split; }
  bool isPartial(mlir::Value v) const { return stateOf(v).kind == State::Partial; }
  llvm::ArrayRef<int64_t> globalShape(mlir::Value v) const;
  mlir::RankedTensorType leafType(mlir::RankedTensorType global, Place place) const;
  void setSplit(mlir::Value v, Place place, bool chosen = false);
  void setPartial(mlir::Value v) { states[v] = {State::Partial, {}}; }

  // Elements of a leaf that are neighbours in an outer block of the global value.
  int64_t runOf(Place place) const { return place.run * (parts / leaves); }
  // A global value as [before, leaves, run, after], of which a leaf has its index along `leaves`.
  struct Blocks {
    int64_t before, run, after;
  };
  Blocks blocksOf(llvm::ArrayRef<int64_t> global, Place place) const;
  // The place of `other` in `dimension` where the same axis of `v` is at `place`; nothing if the parts do not fit.
  std::optional<Place> placeAt(mlir::Value v, Place place, mlir::Value other, int64_t dimension) const;

  // Values in another state, made once, right after what they are made of.
  mlir::Value wholeOf(mlir::Value v, mlir::Operation* user);
  mlir::Value sumOf(mlir::Value v);
  mlir::Value gather(mlir::Value v, mlir::Operation* user);
  mlir::Value splitAt(mlir::Value v, Place place, mlir::Operation* user);
  // A leaf's part of a whole value: of what makes it, if its op can be computed for a part.
  mlir::Value partOf(mlir::Value v, Place place, int depth = 0);
  mlir::Value partOfConstant(ConstantOp op, Place place);
  mlir::Value partOfIota(IotaOp op, Place place);
  mlir::Value partOfResult(mlir::OpResult v, Place place, int depth);
  mlir::Value selectPart(mlir::Value v, Place place);
  mlir::Value numberOfLeaf();
  void insertAfter(mlir::Value v);
  // One of `leaves` equal terms of a whole value.
  void makeTerm(mlir::OpOperand& operand);
  void makeWhole(mlir::OpOperand& operand);

  mlir::LogicalResult visit(mlir::Operation* op);
  bool visitLinear(mlir::Operation* op);
  bool visitReshape(ReshapeOp op);
  bool visitAxes(mlir::Operation* op);
  bool visitBlocks(mlir::Operation* op);
  void computeAlong(mlir::Operation* op, const OpAxis& axis, mlir::Value first, Place place);
  void scaleMean(ReduceOp op);
  void maskSummed(mlir::Operation* op, Place place);
  // Every leaf computes the op for all rows, and keeps its part of the results.
  void computeWhole(mlir::Operation* op);
  std::optional<Place> placeOfWhole(mlir::Value result, int64_t dimension) const;
  mlir::LogicalResult visitBatchNorm(BatchNormOp op);
  void visitRandom(mlir::Operation* op);
  mlir::LogicalResult visitTerm(mlir::Operation* op, llvm::StringRef ofEachRow);
  mlir::LogicalResult visitOutput(OutputOp op);

  // The check compares with the step as it was: each value of a leaf is of one of its values. It takes reshards, which
  // change the state of a value, for right.
  void remember();
  std::optional<mlir::Value> batchValueOf(mlir::Value v) const;
  Claim claimOf(mlir::Value v) const;
  mlir::Value claim(mlir::Value v, mlir::Value like);
  mlir::Value reshard(mlir::Value v, mlir::Value from);
  mlir::LogicalResult checkClaims(OpCheck& check);
  mlir::LogicalResult checkOp(OpCheck& check, mlir::Operation* op);

  using Placed = std::pair<mlir::Value, std::pair<int64_t, int64_t>>;
  mlir::func::FuncOp step;
  const int64_t leaves, parts;
  int64_t rows = 0;  // the batch has so many
  mlir::OpBuilder builder;
  RowMask mask;
  bool dependent = false;
  llvm::DenseMap<mlir::Value, int64_t> rowsIn;  // whole values that are made of gathered rows: their dimension then
  llvm::DenseMap<mlir::Value, State> states;
  llvm::DenseMap<mlir::Value, mlir::SmallVector<int64_t>> shapes;  // global ones, of split values
  llvm::DenseMap<mlir::Value, mlir::Value> wholes;                 // by partial or split value
  llvm::DenseMap<Placed, mlir::Value> partsOfWhole;                // by whole value and place
  mlir::Value leafNumber;
  std::vector<GatheredValue> gatheredValues;
  std::vector<mlir::Operation*> repeatedOps;
  mlir::OwningOpRef<mlir::func::FuncOp> before;
  llvm::DenseMap<mlir::Value, mlir::Value> batchValues;  // by value of a leaf
  llvm::DenseSet<mlir::Value> reshards;
  // Results of a leaf that are terms only after a multiplication: by what, and the term.
  llvm::DenseMap<mlir::Value, std::pair<double, mlir::Value>> scaled;
};

}  // namespace sheaf::train
