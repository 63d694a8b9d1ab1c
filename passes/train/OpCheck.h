// Tries what a partition claims of ops, by evaluating them for all leaves.
//
// An op of the batch has values x, and the op of each leaf has of x what is claimed of the operands. Then the leaves'
// results must be what is claimed of the results: all of them, each leaf's part, or terms that add up to them. Both ops
// are evaluated (Evaluator.h) at small sizes on random values. If the claims of every op hold, every value is what is
// claimed of it, by induction over the program (docs/proof.md).
#pragma once

#include <random>
#include <string>
#include <vector>

#include "ir/Train/Evaluator.h"
#include "llvm/ADT/StringMap.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "passes/train/OpPair.h"

namespace sheaf::train {

// The name of the graph's node that an op was made of; "the model" for an op of none.
std::string nodeName(mlir::Location location);

class OpCheck {
 public:
  // `fault` makes one claim wrong: the number goes through all claims of all ops, and for each through all other
  // claims. -1: none.
  OpCheck(mlir::MLIRContext* context, int64_t leaves, int64_t fault = -1);

  // Fails with an error at the leaf's op. A pair like one before is not tried again.
  mlir::LogicalResult check(const OpPair& pair);
  // Fails unless as many terms as there are leaves, each `factor` times a value, add up to it.
  mlir::LogicalResult checkTerm(mlir::Operation* leaf, double factor);
  // For a loss, an update or a moment: fails unless a leaf gives a term.
  mlir::LogicalResult checkEffect(mlir::Operation* leaf, Claim claim);
  // For an op that cannot be tried.
  void skip(mlir::Operation* leaf, llvm::StringRef why);

  // Adds to the module's decisions how many ops were tried, which were not, and which gave results that would look the
  // same under another claim. A remark says which claim `fault` made wrong; none: there are fewer claims.
  void addTo(mlir::ModuleOp module, llvm::StringRef pass) const;

 private:
  struct Instance;
  struct Verdict {
    enum Kind { Right, Weak, Unchecked, Wrong } kind = Right;
    std::string why;
  };

  bool isFault(mlir::Operation* op, const llvm::Twine& what);
  void inject(OpPair& pair);
  mlir::LogicalResult report(mlir::Operation* leaf, const Verdict& verdict);
  Verdict tryPair(const OpPair& pair);
  Verdict tryAt(const OpPair& pair, const PairShapes& shapes);
  void fitBlocks(const OpPair& pair, Instance& instance, const PairShapes& shapes) const;
  mlir::Operation* make(mlir::Operation* op, llvm::ArrayRef<llvm::SmallVector<int64_t>> operands,
                        llvm::ArrayRef<llvm::SmallVector<int64_t>> results);
  void draw(const OpPair& pair, Instance& instance, int kind, bool ignoresConstants);
  Tensor drawn(const OpPair& pair, mlir::Operation* op, unsigned operand, int kind);
  std::vector<Tensor> divide(const Tensor& batch, const Claim& claim, int kind);
  double number(int kind);
  mlir::LogicalResult evaluateLeaves(Instance& instance) const;

  const int64_t leaves;
  int64_t fault;
  std::mt19937_64 random;
  mlir::OwningOpRef<mlir::func::FuncOp> scratch;
  llvm::StringMap<Verdict> known;
  int64_t total = 0, spent = 0;
  std::vector<std::string> uncheckedOps, weakOps;
  std::string injectedFault;
};

}  // namespace sheaf::train
