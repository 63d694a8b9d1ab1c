// Lowers the ops of the `zero` dialect: storage of buckets, collectives, sums over micro-batches, norms, updates and
// the loss scale.
#pragma once

#include "passes/StepModule.h"
#include "passes/plan/Locations.h"
#include "runtime/plan/LossScale.h"

namespace sheaf::plan_ir {

// Gathers have a communicator of their own: a library may run them otherwise than sums, by copy engines, say. So there
// are two, and with nodes two on each axis that hops run on, and one for sums over all ranks.
inline constexpr int64_t kGathers = 0, kReductions = 1, kCommunicators = 2;

// The module that is lowered.
struct LoweredModule {
  mlir::ModuleOp module;
  mlir::func::FuncOp step;                   // null: the module only evaluates
  int64_t ranks = 1, leaves = 1, stage = 0;  // leaves of a rank, in all micro-batches
  zero::Sharding sharding;

  explicit LoweredModule(mlir::ModuleOp module)
      : module(module),
        step(zero::stepOf(module)),
        ranks(zero::ranksOf(module)),
        leaves(zero::moduleInteger(module, "train.leaves", 1)),
        stage(zero::effectiveStage(module)),
        sharding(zero::shardingOf(module)) {}
};

// The facts that all collectives of one array share. `bucket`: the bucket that the array belongs to; empty: none.
struct CollectiveSite {
  llvm::StringRef label, bucket;
  plan::ElementType type = plan::ELEMENT_TYPE_UNSPECIFIED;
  plan::Collective::Phase phase = plan::Collective::FORWARD;
};

// The scalar arguments of an optimizer's rule: operands of the update, or constants.
struct RuleScalars {
  llvm::SmallVector<unsigned> arguments;  // numbers of the rule's arguments, one for each operand
  llvm::SmallVector<Operand> operands;
  llvm::SmallVector<std::pair<unsigned, double>> constants;
};

// The iteration space of a kernel over all elements of an array: rows x columns, in blocks of rows.
struct ArrayGrid {
  int64_t rows, columns, block;

  explicit ArrayGrid(int64_t elements);
};

class ZeroLowering {
 public:
  ZeroLowering(LoweredModule& from, PlanBuilder& builder, Locations& places)
      : from_(from), builder_(builder), places_(places) {}

  // Lowers one op of the dialect.
  mlir::LogicalResult lower(mlir::Operation* op);
  // Declares the buckets, and their storage in Locations::buckets.
  void declareStorage();
  // Each part of a step has a buffer of its own for a bucket's gradient.
  void placeGradients(mlir::func::FuncOp function);
  // Places the partial norms of all buckets side by side, each rank's in a row.
  void placeNorms(mlir::func::FuncOp function);

  // True if some rule skips updates of bad steps. Then the loss is judged: the step's, of all ranks and micro-batches.
  bool skipsUpdates();
  void judgeLoss(const Operand& loss) { judgedLoss_ = loss; }

  // All-gathers an array of `bytes` bytes into `destination`. `own`: the rank's shard, one of `parts`. `first`: the
  // buffer for the result of the first of two hops; by default its place in `destination`.
  void gather(const CollectiveSite& site, const Operand& own, int64_t parts, int64_t bytes, int64_t destination,
              int64_t first = kNoBuffer);
  // A sum over all ranks.
  void sumOverRanks(llvm::StringRef label, plan::ElementType type, const Operand& source, const Operand& destination);
  // Returns the sum over micro-batches to which a reduction over ranks is added; nothing if it is not added to one.
  std::optional<Operand> chainOf(mlir::Value reduced);

  // Declares the state of the loss scale, if the step has one.
  mlir::LogicalResult declareLossScale();
  // The loss scale itself, in f32.
  Operand lossScale() { return updateScalar(plan::UpdateScalarCall()); }
  void advanceLossScale();
  // Declares the buffers of scalars, before anything uses them.
  void declareScalarBuffers();
  // Declares the step scalars. The instructions that read or compute scalars stand before all others of the body, and
  // the loss scale before all others of each part that uses it.
  void computeScalars(llvm::MutableArrayRef<mlir::func::FuncOp> parts);

  // The axes of the communicators that there are; only with nodes.
  void declareCommunicators();
  // The index of the parameter group of a bucket, and whether it has a learning rate of its own.
  struct Group {
    int64_t index = 0;
    bool ownRate = false;
  };
  Group groupOf(zero::BucketOp bucket);

 private:
  // A step scalar as in the plan's message.
  struct StepScalar {
    plan::StepScalar::Kind kind;
    double value;
    int64_t group = 0;
    bool operator==(const StepScalar&) const = default;
  };
  // A step scalar that the device computes from the state of the loss scale. `rateSlot`: the step scalar that is its
  // rate.
  struct UpdateScalar {
    plan::UpdateScalarCall call;
    int64_t rateSlot = 0;
    bool operator==(const UpdateScalar& other) const {
      return call.kind == other.call.kind && call.value == other.call.value && rateSlot == other.rateSlot;
    }
  };

  BucketStorage* storageOf(mlir::Operation* op);
  // The collectives of an op of a bucket, whose elements have this type there.
  static CollectiveSite siteOf(mlir::Operation* op, plan::Collective::Phase phase, mlir::Type element);
  void lowerBucketGather(zero::AllGatherOp op);
  void lowerGatherUpdated(zero::GatherUpdatedOp op);
  void lowerSquareSum(zero::SquareSumOp op);
  void lowerNorm(zero::GradientNormOp op);
  void zeroPadding(BucketStorage& storage);
  void fillGradient(llvm::StringRef label, BucketStorage& storage, mlir::OperandRange gradients);

  // LowerUpdate.cpp
  mlir::LogicalResult lowerUpdate(zero::UpdateOp op);
  mlir::FailureOr<RuleScalars> scalarsOf(zero::BucketOp bucket, train::OptimizerOp optimizer, unsigned first);

  // LowerHops.cpp: collectives of a bucket's elements, in two hops where there are nodes.
  // Returns the operand for the rank's shard of an array of `bytes` bytes that is divided into `parts` shards. `buffer`
  // holds one of `held` parts of the array.
  Operand partOf(int64_t buffer, int64_t bytes, int64_t held, int64_t parts, int64_t access) const;
  // Returns the operand for the rank's shard of a value of `bytes` bytes, of which `at` holds one of `has` parts.
  Operand shardOf(const Location& at, int64_t bytes, int64_t has) const;
  int64_t communicator(plan::Axis axis, int64_t kind);
  void hop(plan::Axis axis, plan::CollectiveOp op, const CollectiveSite& site, const Operand& source,
           const Operand& destination);
  void lowerReduction(mlir::Operation* op, BucketStorage& storage);
  void lowerChainedReduction(mlir::Operation* op, BucketStorage& storage, const Operand& chain);
  // A reduction at stage 0, to all ranks.
  void reduceToAll(const CollectiveSite& site, const Operand& whole);
  // The operand that the first of two hops of a reduction to shards writes, and the rank's part at its end.
  struct Reduced {
    Operand piece, result;
  };
  Reduced placeReduced(mlir::Operation* op, const BucketStorage& storage);
  // True if a reduction takes two hops.
  bool hasTwoHops() const;
  // The axis of a reduction that takes one hop.
  plan::Axis onlyAxis() const;

  // LowerMicroBatches.cpp
  // The buffer of a level of a sum over micro-batches.
  int64_t levelOf(llvm::StringRef sum, int64_t level, plan::BufferKind kind, int64_t bytes);
  plan::BufferKind kindOfSum(zero::AccumulateOp op) const;
  void lowerAccumulate(zero::AccumulateOp op);
  void lowerChain(zero::AccumulateOp op);
  // destination = terms[0] + (terms[1] + (... + terms.back())), element by element.
  void addUp(zero::AccumulateOp op, llvm::ArrayRef<Operand> terms, Operand destination);

  // LowerScalars.cpp
  // The index of a step scalar, which is added if it is new.
  int64_t scalarSlot(const StepScalar& scalar);
  // With a loss scale, the place of a step scalar that depends on the number of updates. Other kinds have none.
  std::optional<Operand> updateScalar(const StepScalar& scalar);
  Operand updateScalar(const plan::UpdateScalarCall& call, int64_t rateSlot = 0);
  void computeUpdateScalar(int64_t slot);

  LoweredModule& from_;
  PlanBuilder& builder_;
  Locations& places_;
  llvm::SmallVector<std::pair<plan::Axis, int64_t>> communicators_;  // with nodes: axis and kGathers or kReductions
  llvm::StringMap<llvm::SmallVector<int64_t>> sums_;                 // over micro-batches: the buffer of each level
  llvm::SmallVector<StepScalar> scalars_;
  int64_t scalarBuffer_ = kNoBuffer, normScalars_ = kNoBuffer;
  int64_t normPartials_ = 0;  // each leaf has one for each bucket
  std::optional<Operand> judgedLoss_;
  std::optional<plan::LossScale> lossScale_;
  int64_t lossScaleState_ = kNoBuffer, updateScalarBuffer_ = kNoBuffer;  // with a loss scale
  llvm::SmallVector<UpdateScalar> updateScalars_;                        // f32 each, in the latter
};

}  // namespace sheaf::plan_ir
