// The places of the values of the step and of the evaluation in memory.
#pragma once

#include "ir/Zero/ZeroDialect.h"
#include "passes/plan/PlanBuilder.h"

namespace sheaf::plan_ir {

// The place of a value: bytes of a buffer. The value is dense and row-major, unless rowStride is set: then it is rows
// of rowBytes bytes that start rowStride bytes apart. What lies between `padded` rows, and after the last, belongs to
// the value, too; else to other values.
struct Location {
  int64_t buffer = kNoBuffer;
  int64_t offset = 0;
  int64_t shardStride = 0;  // times the rank's index on `axis`
  int64_t rowStride = 0, rowBytes = 0;
  bool padded = false;
  plan::Axis axis = plan::WORLD;
};

// The buffers of a bucket in the plan.
struct BucketStorage {
  zero::BucketOp op;
  int64_t index = 0, elements = 0, width = 4;
  mlir::Type gradientType;  // the type of the elements of `gradient`
  bool master = false;      // the first of `states` holds the parameters in f32
  int64_t parameters = kNoBuffer;
  llvm::SmallVector<int64_t> states;
  int64_t gradient = kNoBuffer;   // the unreduced gradient; at stages 0 and 1 also the reduced one
  int64_t secondary = kNoBuffer;  // the shards of the ranks with one local number, kept from gather to gather
};

class Locations {
 public:
  explicit Locations(PlanBuilder& builder) : builder_(builder) {}

  // Notes the position of each op of a function, and the last reader of each value. `judgesLoss`: the loss is read
  // again where the gradient norm is computed.
  void analyzeUses(mlir::Block& block, bool judgesLoss);

  bool contains(mlir::Value value) const { return places_.contains(value); }
  Location& operator[](mlir::Value value) { return places_[value]; }
  // The place of a value that has been placed.
  Location of(mlir::Value value) const { return places_.lookup(value); }
  // An operand that covers a whole value.
  Operand operand(mlir::Value value, int64_t access) const;
  // Places a result, and returns the operand that writes it.
  Operand place(mlir::Value result, int64_t rowElements = 0) {
    places_[result] = choose(result, rowElements);
    return operand(result, kWrite);
  }
  // The place for a result: its slot in a bucket's gradient or in a concatenation, or a buffer of its own. In a
  // concatenation only if its instruction can write rows of `rowElements` elements apart and these are what is joined.
  Location choose(mlir::Value value, int64_t rowElements = 0);
  // The place for a result of a fusion. Instead of a fresh buffer it may get the memory of an operand that is not read
  // afterwards and that is not in `taken`.
  Location chooseInPlace(train::FusionOp fusion, mlir::Value result, const llvm::DenseSet<int64_t>& taken);

  llvm::MapVector<llvm::StringRef, BucketStorage> buckets;

 private:
  // `reshaped`: the last result of a chain of reshapes of the value, or the value itself.
  std::optional<Location> inBucket(mlir::Value value, mlir::Value reshaped);
  std::optional<Location> inRows(mlir::Value reshaped, int64_t rowElements);
  std::optional<Location> inPiece(mlir::Value value, mlir::Value reshaped);
  const Location& ofConcat(train::ConcatOp concat);

  PlanBuilder& builder_;
  llvm::DenseMap<mlir::Value, Location> places_;
  llvm::DenseMap<mlir::Value, int64_t> lastUse_;  // position of the last reader of a value or of a view
  llvm::DenseMap<mlir::Operation*, int64_t> position_;
  llvm::DenseMap<int64_t, int64_t> owned_;  // activation buffers that a result may take over -> their last use
};

}  // namespace sheaf::plan_ir
