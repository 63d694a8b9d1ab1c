// How the leaves' values lie in the values of a rank's program.
//
// The program of one leaf is given; that of a rank computes each of its values for every leaf of the rank.
#pragma once

#include <functional>
#include <optional>

#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/DenseMap.h"

namespace sheaf::train {

// In a value that has those of all leaves, the dimension is (outer x leaves x own).
struct LeafRows {
  int64_t dimension = 0, own = 1;
  bool operator==(const LeafRows&) const = default;
};

// What a value of the leaf's program is in the rank's: one that is the same for every leaf; one that has the leaves'
// values side by side; or one value for each leaf.
struct LeafState {
  enum Kind { Replicated, Split, Apart } kind = Replicated;
  LeafRows rows;  // of a split one
};

class LeafValues {
 public:
  using MaybeRows = std::optional<LeafRows>;

  // New ops are made by `builder`; groups (kGroupAttr) from `nextGroup` on are free.
  LeafValues(mlir::OpBuilder& builder, int64_t leaves, int64_t nextGroup)
      : builder(builder), leaves(leaves), nextGroup(nextGroup) {}

  // Called for every op that is made for all leaves of one for a leaf: where the leaves' rows are in its operands, and
  // in its results.
  using Made = std::function<void(mlir::Operation* op, mlir::Operation* made, mlir::ArrayRef<MaybeRows>, LeafRows)>;
  void onMade(Made call) { noteMade = std::move(call); }

  LeafState of(mlir::Value v) const { return states.lookup(v); }
  bool isSplit(mlir::Value v) const { return of(v).kind == LeafState::Split; }
  LeafRows rowsOf(mlir::Value v) const { return of(v).rows; }
  // Elements of a leaf's value that are neighbours in all leaves' together.
  static int64_t runOf(mlir::RankedTensorType type, LeafRows rows);
  // Rows of a leaf's value with so many neighbours, which divide its elements into equal blocks.
  static LeafRows rowsOfRun(mlir::RankedTensorType type, int64_t run);
  mlir::RankedTensorType widened(mlir::RankedTensorType type, LeafRows rows) const;

  // A replicated or split value.
  void setWhole(mlir::Value v, mlir::Value made, LeafState state) { wholes[v] = made, states[v] = state; }
  void setWhole(mlir::Operation* op, mlir::Operation* made, LeafState state);
  // Values of leaves, or those of a kernel's column sums with the leaves as first dimension.
  void setParts(mlir::Value v, mlir::ArrayRef<mlir::Value> made);
  void setStacked(mlir::Value v, mlir::Value made) { setWhole(v, made, {LeafState::Apart, {}}); }
  // One whose parts are made later, in the order of the leaves.
  void announceParts(mlir::Value v) { states[v] = {LeafState::Apart, {}}; }
  void addPart(mlir::Value v, mlir::Value made) { parts[v].push_back(made); }

  mlir::Value whole(mlir::Value v) const { return wholes.lookup(v); }
  // One that is the same for every leaf, for an op of the user's group that is made in `group`: what the user's kernel
  // computes of it is computed there.
  mlir::Value inside(mlir::Operation* user, mlir::Value v, int64_t group);
  // The leaf's value, outside of kernels.
  mlir::Value part(mlir::Value v, int64_t leaf);
  // All leaves' values side by side as `rows` says, for a `user` in the leaf's program: copies of what is replicated.
  // Null: a kernel cannot have it so, or it is apart.
  mlir::Value withRows(mlir::Operation* user, mlir::Value v, LeafRows rows);
  // The leaves' values side by side, copied together outside of kernels.
  mlir::Value join(mlir::ArrayRef<mlir::Value> pieces, LeafRows rows, mlir::Location loc);
  // The sum of all leaves' values, in the order of the tree.
  mlir::Value sumOf(mlir::Value v);

  mlir::Operation* cloneWith(mlir::Operation* op, mlir::ValueRange operands, mlir::TypeRange results);
  // Notes on a kernel's op where the leaves' rows lie in each operand and result.
  void markRows(mlir::Operation* op, mlir::ArrayRef<MaybeRows> operands, MaybeRows results);

  // The group for what a group of the leaf's program computes for one leaf alone; leaf -1: for all of them.
  int64_t groupOf(int64_t group, int64_t leaf);
  int64_t newGroup() { return nextGroup++; }
  void setGroup(mlir::Operation* op, int64_t group) const;

 private:
  // Whether the user's kernel computes `v` by a reduction of its own.
  bool reducesInside(mlir::Operation* user, mlir::Value v) const;
  mlir::Value replicate(mlir::Operation* user, mlir::Value v, LeafRows rows);
  mlir::Value moveRows(mlir::Operation* user, mlir::Value v, LeafRows rows);
  mlir::Value slice(mlir::Value v, int64_t dimension, int64_t start, int64_t size);
  mlir::Value leafOf(mlir::Value wide, LeafRows rows, int64_t leaf);
  mlir::Value sum(mlir::ArrayRef<mlir::Value> terms, size_t& grouped);
  void regroup(mlir::Value v, size_t terms, int64_t group);

  using Place = std::pair<int64_t, int64_t>;  // dimension, own
  mlir::OpBuilder& builder;
  const int64_t leaves;
  int64_t nextGroup;
  Made noteMade;
  llvm::DenseMap<mlir::Value, LeafState> states;
  llvm::DenseMap<mlir::Value, mlir::Value> wholes;
  llvm::DenseMap<mlir::Value, llvm::SmallVector<mlir::Value>> parts;
  llvm::DenseMap<mlir::Value, mlir::Value> sums;
  llvm::DenseMap<std::pair<std::pair<mlir::Value, mlir::Attribute>, Place>, mlir::Value> placed;  // by user's group
  llvm::DenseMap<std::pair<mlir::Value, int64_t>, mlir::Value> insides;                           // by group
  llvm::DenseMap<std::pair<int64_t, int64_t>, int64_t> groups;
};

// An op of a kernel that treats each element by itself.
bool isElementOp(mlir::Operation* op);

}  // namespace sheaf::train
