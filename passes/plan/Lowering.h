// The state of one lowering from the step to instructions: where values lie, and how instructions are made.
#pragma once

#include "ir/Train/ElementTypes.h"
#include "passes/StepModule.h"
#include "passes/plan/Passes.h"
#include "runtime/plan/Library.h"
#include "runtime/plan/LossScale.h"

namespace sheaf::plan_ir {

inline constexpr int64_t kComputeStream = 0, kCommunicationStream = 1;
// With nodes: of hops between them, so that one array's hop within nodes runs while another one's is under way there.
inline constexpr int64_t kNetworkStream = 2;
// Gathers have a communicator of their own: a library may run them otherwise than sums, by copy engines, say. So there
// are two, and with nodes two on each axis that hops run on, and one for sums over all ranks.
inline constexpr int64_t kGathers = 0, kReductions = 1, kCommunicators = 2;

// Where a value lies: bytes of a buffer. Dense row-major, unless rowStride is set: then the value is rows (all
// dimensions up to `splitAt` elements from the end) of `rowBytes` bytes that start rowStride bytes apart. What lies
// between `padded` rows, and after the last, belongs to the value, too; else to other values.
struct Location {
  mlir::Value buffer;
  int64_t offset = 0;
  int64_t shardStride = 0;  // times the rank's index on `axis`
  int64_t rowStride = 0, rowBytes = 0;
  bool padded = false;
  plan::Axis axis = plan::WORLD;
};

// As in the plan's message.
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

// What a bucket's storage is in the plan.
struct BucketStorage {
  zero::BucketOp op;
  int64_t index = 0, elements = 0, width = 4;
  mlir::Type gradientType;  // of the elements of `gradient`
  bool master = false;      // the first of `states` holds the parameters in f32
  bool parametersSharded = false, statesSharded = false;
  mlir::Value parameters;
  llvm::SmallVector<mlir::Value> states;
  mlir::Value gradient;   // the unreduced gradient; at stages 0 and 1 also the reduced one
  mlir::Value secondary;  // the shards of the ranks with one local number, kept from gather to gather
};

struct Lowering {
  mlir::ModuleOp module;
  mlir::func::FuncOp step;        // null: the module only evaluates
  mlir::OpBuilder head, section;  // where buffers and other declarations go; where instructions go
  int64_t ranks = 1, leaves = 1, stage = 0, maxThreads = 8;  // leaves of a rank, in all micro-batches
  zero::Sharding sharding;
  llvm::SmallVector<std::pair<plan::Axis, int64_t>> communicators;  // with nodes: axis and kGathers or kReductions
  bool cpu = true, gpu = false;                                     // what the plan is for
  llvm::DenseMap<mlir::Value, Location> locations;
  llvm::MapVector<mlir::StringRef, BucketStorage> buckets;
  llvm::DenseMap<mlir::Value, int64_t> lastUse;  // of a value or a view of it: position of the last reader
  llvm::DenseMap<mlir::Operation*, int64_t> position;
  llvm::DenseMap<mlir::Value, bool> ownedBuffers;  // activation buffers that a result may take over
  llvm::StringMap<int64_t> kernels;                // text of a fusion -> kernel
  llvm::SmallVector<StepScalar> scalars;
  mlir::Value scalarBuffer, normScalars;
  llvm::StringMap<llvm::SmallVector<mlir::Value>> sums;  // over micro-batches: the buffer of each level
  std::optional<plan::LossScale> lossScale;
  mlir::Value lossScaleState, updateScalarBuffer;  // with a loss scale
  llvm::SmallVector<UpdateScalar> updateScalars;   // f32 each, in the latter
  int64_t normPartials = 0;                        // of a leaf: one a bucket
  // The step's loss, of all ranks and micro-batches, if updates are skipped when it is not finite.
  std::optional<Operand> judgedLoss;
  llvm::StringMap<int64_t> names;
  ProgramOp program;
  PrologueOp prologue;
  StepOp body;
  EpilogueOp epilogue;
  EvaluationOp evaluation;  // null: there is none

  explicit Lowering(mlir::ModuleOp module, mlir::func::FuncOp step)
      : module(module), step(step), head(module.getContext()), section(module.getContext()) {}

  // True while instructions of the evaluation are made.
  bool evaluates() { return evaluation && section.getInsertionBlock() == &evaluation.getBody().front(); }
  // The pieces of the batch, of which a rank computes one at a time.
  int64_t pieces() { return ranks * (evaluates() ? 1 : zero::moduleInteger(module, "train.micro_batches", 1)); }
  // Declares a buffer; names are made unique.
  mlir::Value buffer(llvm::StringRef name, plan::BufferKind kind, int64_t bytes, bool persistent = false);
  // Where a value lies; the value must have been placed.
  Location locate(mlir::Value value) const { return locations.lookup(value); }
  // The place for a result: its slot in a bucket's gradient or in a concatenation, or a buffer of its own. In a
  // concatenation only if its instruction can write rows of `rowElements` elements apart and these are what is joined.
  Location placeResult(mlir::Value value, int64_t rowElements = 0);
  // An operand that covers a whole value.
  Operand operand(mlir::Value value, int64_t access) const;

  // Appends an instruction to the current section. A call's operands are in the order of its table; scratch is added.
  void call(mlir::Location loc, const plan::AnyCall& call, llvm::ArrayRef<Operand> operands);
  void launch(train::FusionOp fusion, llvm::ArrayRef<Operand> operands, llvm::StringRef label, int64_t updates = 0);
  template <typename OpTy, typename... Args>
  OpTy instruction(mlir::Location loc, int64_t stream, llvm::StringRef label, llvm::ArrayRef<Operand> operands,
                   Args&&... args) {
    llvm::SmallVector<mlir::Value> values;
    llvm::SmallVector<int64_t> offsets, bytes, strides, axes, access;
    for (const Operand& o : operands) {
      values.push_back(o.buffer);
      offsets.push_back(o.offset), bytes.push_back(o.bytes), strides.push_back(o.stride), access.push_back(o.access);
      axes.push_back(o.axis);
    }
    return OpTy::create(section, loc, stream, label, values, offsets, bytes, strides, axes, access,
                        std::forward<Args>(args)...);
  }

  // LowerZero.cpp: lowers one op of the `zero` dialect.
  mlir::LogicalResult lowerZero(mlir::Operation* op);
  mlir::LogicalResult lowerUpdate(zero::UpdateOp op);
  void lowerNorm(zero::GradientNormOp op);
  // True if some rule skips updates of bad steps.
  bool skipsUpdates();
  void zeroPadding(BucketStorage& storage);
  void fillGradient(mlir::Location loc, BucketStorage& storage, mlir::OperandRange gradients);
  // Each part of a step has a buffer of its own for a bucket's gradient.
  void placeGradients(mlir::func::FuncOp function);
  // The buffer of a level of a sum over micro-batches.
  mlir::Value levelOf(llvm::StringRef sum, int64_t level, plan::BufferKind kind, int64_t bytes);
  plan::BufferKind kindOfSum(zero::AccumulateOp op) const;
  void lowerAccumulate(zero::AccumulateOp op);
  void lowerChain(zero::AccumulateOp op);
  // The sum over micro-batches that a reduction over ranks goes on from, where it does.
  std::optional<Operand> chainOf(mlir::Value reduced);
  // destination = terms[0] + (terms[1] + (... + terms.back())), element by element.
  void addUp(mlir::Location loc, llvm::StringRef label, mlir::Type element, int64_t elements,
             llvm::ArrayRef<Operand> terms, Operand destination);
  // LowerHops.cpp: collectives of a bucket's elements, in two hops where there are nodes.
  // From the array that a part of the ranks hold, divided by all of them into `parts`, and where the rank's part lies:
  // an operand is that part of the whole or of a larger part.
  Operand partOf(mlir::Value buffer, int64_t bytes, int64_t held, int64_t parts, int64_t access) const;
  // The rank's part of `parts` of a value of `bytes` bytes in all, of which it has `has` parts at `at`.
  Operand shardOf(const Location& at, int64_t bytes, int64_t has) const;
  int64_t communicator(plan::Axis axis, int64_t kind);
  void hop(plan::Axis axis, plan::CollectiveOp op, mlir::Location loc, llvm::StringRef label, llvm::StringRef bucket,
           plan::ElementType type, plan::Collective::Phase phase, const Operand& source, const Operand& destination);
  // All ranks' parts of an array of `bytes`, from where the rank has its own one (of all ranks, or of its node) into
  // `destination`, which is whole; `first`: where the first hop writes its result, if that is not in its place there.
  void gather(mlir::Location loc, llvm::StringRef label, llvm::StringRef bucket, plan::ElementType type,
              plan::Collective::Phase phase, const Operand& own, int64_t parts, int64_t bytes, mlir::Value destination,
              mlir::Value first = {});
  mlir::LogicalResult lowerReduction(mlir::Operation* op, BucketStorage& storage);
  void lowerChainedReduction(mlir::Operation* op, BucketStorage& storage, const Operand& chain);
  // A sum over all ranks.
  void sumOverRanks(mlir::Location loc, llvm::StringRef label, plan::ElementType type, int64_t count,
                    const Operand& source, const Operand& destination);
  // The index of a step scalar, which is added if it is new.
  int64_t scalarSlot(const StepScalar& scalar);
  // Where a step scalar lies that depends on the number of updates, given a loss scale; nothing of other kinds.
  std::optional<Operand> updateScalar(const StepScalar& scalar);
  Operand updateScalar(const plan::UpdateScalarCall& call, int64_t rateSlot = 0);
  // LowerLossScale.cpp: declares the state, computes scalars from it before the step, and advances it at the end.
  mlir::LogicalResult declareLossScale();
  void computeUpdateScalars();
  void computeUpdateScalar(int64_t slot);
  void advanceLossScale();
  // The parameter group of a bucket, and whether it has a learning rate of its own.
  struct Group {
    int64_t index = 0;
    bool ownRate = false;
  };
  Group groupOf(zero::BucketOp bucket);

  // LowerCalls.cpp: lowers one op that is not of the `zero` dialect.
  mlir::LogicalResult lowerOp(mlir::Operation* op);
  mlir::LogicalResult lowerFusion(train::FusionOp op);
  // Copies a strided view: shapes and strides in elements.
  void copy(mlir::Location loc, const Operand& source, const Operand& destination, int64_t width,
            llvm::ArrayRef<int64_t> sizes, llvm::ArrayRef<int64_t> sourceStrides,
            llvm::ArrayRef<int64_t> destinationStrides, int64_t sourceOffset = 0, bool zero = false);
};

// Bytes of an element in memory.
inline int64_t widthOf(mlir::Type element) {
  return int64_t(train::elementFacts(element).bytes());
}
inline int64_t bytesOf(mlir::Value value) {
  auto type = llvm::cast<mlir::RankedTensorType>(value.getType());
  return type.getNumElements() * widthOf(type.getElementType());
}
// An element type in plan.proto, and that of a tensor's elements.
inline plan::ElementType elementTypeOf(mlir::Type element) {
  return train::planType(element);
}
plan::ElementType elementTypeOf(mlir::Value value);

// A short name for people: the graph node or parameter an op comes from.
std::string labelOf(mlir::Location loc);

}  // namespace sheaf::plan_ir
