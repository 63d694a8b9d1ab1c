// Outlines groups into train.fusion: the iteration space, the size of a block of rows, operands and results.
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/Support/MathExtras.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "passes/train/FusionOps.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_FUSE
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// Elements of a row where a kernel may cut its tensors as it likes.
constexpr int64_t kFlatColumns = 4096;

// Rows of a block with partial sums, if there are enough: these then take a thirty-second of what is summed, and a GPU
// has blocks for all of its processors.
constexpr int64_t kPartialRows = 32;

// Rows of a block with partial sums of so many rows: blocks divide them where that does not cost many blocks, so that
// several leaves of as many rows are several times the same blocks.
int64_t rowsOfPartials(int64_t rows) {
  const int64_t fewest =
      std::max(std::min<int64_t>(llvm::divideCeil(rows, kBlocks), kPartialRows), std::min<int64_t>(rows, 4));
  for (int64_t block = fewest; block <= std::min(rows, 16 * fewest); ++block)
    if (rows % block == 0) return block;
  return fewest;
}

struct Space {
  int64_t rows = 1, columns = 1, block = 1;
};

struct Group {
  SmallVector<Operation*> members;
  SetVector<Value> operands;   // defined outside, in order of use
  SmallVector<Value> results;  // used outside
};

int64_t elementsOf(Value v) {
  return cast<RankedTensorType>(v.getType()).getNumElements();
}

// Without reductions, and with operands that have all elements or just one, rows and columns mean nothing.
std::optional<int64_t> flatElements(const Group& group) {
  int64_t elements = elementsOf(group.results.front());
  auto fits = [&](Value v) { return elementsOf(v) == elements || elementsOf(v) == 1; };
  for (Operation* op : group.members)
    if (isa<ReduceOp, IotaOp>(op) || !llvm::all_of(op->getOperands(), fits) || !llvm::all_of(op->getResults(), fits))
      return std::nullopt;
  for (Value v : group.results)
    if (elementsOf(v) != elements) return std::nullopt;
  if (elements == 1) return std::nullopt;
  return elements;
}

Space spaceOf(const Group& group) {
  Space space;
  if (std::optional<int64_t> elements = flatElements(group)) {
    space.columns = std::min(*elements, kFlatColumns);
    space.rows = llvm::divideCeil(*elements, space.columns);
    space.block = rowsOfBlock(space.rows, kFlatColumns);
    return space;
  }
  bool hasPartials = false;
  int64_t leaves = 1;
  for (Operation* op : group.members) {
    hasPartials |= isColumnReduction(op);
    // Free ops may have fewer rows, and so may what is widened before it is broadcast; a reduction's result has fewer
    // elements than its space.
    bool isReduction = isa<ReduceOp>(op);
    if (auto reduce = dyn_cast<ReduceOp>(op)) leaves = std::max<int64_t>(leaves, reduce.getLeaves());
    Value v = isReduction ? op->getOperand(0) : op->getResult(0);
    if (isReduction || isa<FusableElementwise>(op) || llvm::is_contained(group.results, v))
      space.rows = std::max(space.rows, rowsOf(v));
    space.columns = std::max(space.columns, columnsOf(v));
  }
  space.block = rowsOfBlock(space.rows, space.columns);
  if (hasPartials) {
    // Partial sums take blocks * columns of memory: a modest share of what is summed. (With two rows to a block they
    // never have the type of an operand that is summed, whose memory they could otherwise be given.)
    space.block = rowsOfPartials(space.rows / leaves);
  }
  return space;
}

class Outliner {
 public:
  explicit Outliner(Block& block) : block(block) {}

  LogicalResult run() {
    llvm::MapVector<int64_t, Group> groups;
    for (Operation& op : block)
      if (auto number = op.getAttrOfType<IntegerAttr>(kGroupAttr)) groups[number.getInt()].members.push_back(&op);
    for (auto& [number, group] : groups)
      if (failed(outline(group))) return failure();
    return success();
  }

 private:
  bool isMember(Operation* op, const Group& group) {
    return op && op->hasAttr(kGroupAttr) && op->getAttr(kGroupAttr) == group.members.front()->getAttr(kGroupAttr);
  }

  static bool isSplat(Value v) {
    auto constant = v.getDefiningOp<ConstantOp>();
    return constant && isa<SplatElementsAttr>(constant.getValue());
  }

  LogicalResult outline(Group& group) {
    Operation* last = group.members.back();
    for (Operation* op : group.members) {
      for (Value v : op->getOperands())
        if (!isMember(v.getDefiningOp(), group) && !isSplat(v)) group.operands.insert(v);
      for (Value v : op->getResults()) {
        bool escapes = false;
        for (Operation* user : v.getUsers()) {
          if (isMember(user, group)) continue;
          escapes = true;
          Operation* at = block.findAncestorOpInBlock(*user);
          if (at && at->isBeforeInBlock(last))
            return user->emitOpError("stands within a group of ops that are to become one kernel");
        }
        if (escapes) group.results.push_back(v);
      }
    }
    if (!group.results.empty()) build(group);
    for (Operation* op : llvm::reverse(group.members)) op->erase();
    return success();
  }

  void build(Group& group) {
    Operation* last = group.members.back();
    OpBuilder builder(last);
    builder.setInsertionPointAfter(last);
    Space space = spaceOf(group);

    SmallVector<Type> types;
    for (Value v : group.results) types.push_back(resultType(v, space));
    SmallVector<int64_t> elementwise;
    for (auto [i, v] : llvm::enumerate(group.operands))
      if (isReadInPlace(v, group, space)) elementwise.push_back(static_cast<int64_t>(i));
    SmallVector<Location> locations;
    for (Operation* op : group.members) locations.push_back(op->getLoc());
    Location location = FusedLoc::get(builder.getContext(), locations);
    auto fusion = FusionOp::create(builder, location, types, group.operands.getArrayRef(), space.rows, space.columns,
                                   space.block, elementwise, /*pitches=*/DenseI64ArrayAttr());

    Block* body = builder.createBlock(&fusion.getBody());
    IRMapping mapping;
    for (Value v : group.operands) mapping.map(v, body->addArgument(v.getType(), v.getLoc()));
    for (Operation* op : group.members) {
      for (Value v : op->getOperands())
        if (isSplat(v) && !mapping.contains(v)) builder.clone(*v.getDefiningOp(), mapping);
      builder.clone(*op, mapping)->removeAttr(kGroupAttr);
    }
    SmallVector<Value> yielded;
    for (Value v : group.results) yielded.push_back(mapping.lookup(v));
    YieldOp::create(builder, location, yielded);

    builder.setInsertionPointAfter(fusion);
    for (auto [v, result] : llvm::zip(group.results, fusion.getResults())) {
      Value replacement = result, replaced = v;
      if (isColumnReduction(v.getDefiningOp())) {
        // A sum that is rounded is rounded by what completes it.
        auto rounding = v.hasOneUse() ? dyn_cast<CastOp>(*v.getUsers().begin()) : CastOp();
        if (rounding && !rounding->hasAttr(kGroupAttr)) replaced = rounding.getResult();
        replacement = SumPartialsOp::create(builder, v.getLoc(), replaced.getType(), result);
      }
      replaced.replaceUsesWithIf(replacement, [&](OpOperand& use) { return !isMember(use.getOwner(), group); });
      if (replaced != v) replaced.getDefiningOp()->erase();
    }
  }

  // Column sums come as one row of partial sums a block, never narrower than f32.
  static Type resultType(Value v, const Space& space) {
    if (!isColumnReduction(v.getDefiningOp())) return v.getType();
    Type element = cast<RankedTensorType>(v.getType()).getElementType();
    if (element.getIntOrFloatBitWidth() < 32) element = Float32Type::get(v.getContext());
    return RankedTensorType::get({static_cast<int64_t>(llvm::divideCeil(space.rows, space.block)), columnsOf(v)},
                                 element);
  }

  // A kernel reads an operand with all of its rows at the row it works on, and writes that row when it has read it.
  static bool isReadInPlace(Value v, const Group& group, const Space& space) {
    if (std::optional<int64_t> elements = flatElements(group)) return elementsOf(v) == *elements;
    return rowsOf(v) == space.rows && (columnsOf(v) == space.columns || columnsOf(v) == 1);
  }

  Block& block;
};

struct Fuse : sheaf::train::impl::FuseBase<Fuse> {
  using Base::Base;

  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (Block& block : function.getBody())
        if (failed(Outliner(block).run())) return signalPassFailure();
  }
};

}  // namespace
