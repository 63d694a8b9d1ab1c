#include "passes/train/EqualRows.h"

#include "ir/Train/Constant.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace sheaf::train {

static ArrayRef<int64_t> shapeOf(Value v) {
  return TensorBuilder::typeOf(v).getShape();
}

OpOperand* firstSplitOperand(Operation* op, const BatchStates& states) {
  for (OpOperand& operand : op->getOpOperands())
    if (states.lookup(operand.get()).isSplit()) return &operand;
  return nullptr;
}

SmallVector<OpOperand*> alignedOperands(Operation* op, const BatchStates& states, int64_t dimension, int64_t size,
                                        bool sums) {
  // Other ops do not align a dimension of one operand with that of another.
  auto product = dyn_cast<MatMulOp>(op);
  const bool aligns =
      op->hasTrait<OpTrait::Elementwise>() ||
      isa<ConcatOp, ScatterOp, GatherElementsOp, AttentionOp, CrossEntropyOp, ConvGradFilterOp, MaxPoolGradOp>(op) ||
      (product && !sums && dimension == 0 && shapeOf(product.getResult()).size() == 3);
  if (!aligns) return {};
  SmallVector<OpOperand*> found;
  for (OpOperand& operand : op->getOpOperands()) {
    ArrayRef<int64_t> shape = shapeOf(operand.get());
    if (states.lookup(operand.get()).isSplit() || int64_t(shape.size()) <= dimension || shape[dimension] != size)
      continue;
    // What the rows' updates are added to.
    if (auto scatter = dyn_cast<ScatterOp>(op); scatter && sums && operand.get() == scatter.getData()) continue;
    found.push_back(&operand);
  }
  return found;
}

// The dimension of a reshape's operand that has the same product of dimensions in front of it.
static std::optional<Sources> sourcesOfReshape(ReshapeOp op, int64_t dimension, bool contiguous) {
  int64_t before = 1, d = 0;
  for (int64_t n : shapeOf(op.getResult()).take_front(dimension)) before *= n;
  ArrayRef<int64_t> from = shapeOf(op.getOperand());
  const int64_t rank = from.size(), size = shapeOf(op.getResult())[dimension];
  for (; d < rank && from[d] > 0 && (before > 1 || from[d] == 1) && before % from[d] == 0; ++d) before /= from[d];
  // Ranges of one are then ranges of the other; single elements are ranges of the other where it is the larger one.
  if (before != 1 || d == rank || (!contiguous && from[d] % size)) return std::nullopt;
  return Sources{{0, d}};
}

std::optional<Sources> sourcesOf(Operation* op, int64_t dimension, bool contiguous) {
  Sources same;
  for (unsigned i = 0; i < op->getNumOperands(); ++i) same.emplace_back(i, dimension);
  auto sameIf = [&](bool known) { return known ? std::optional(same) : std::nullopt; };
  const ArrayRef<int64_t> shape = shapeOf(op->getResult(0));
  const int64_t rank = shape.size();
  return llvm::TypeSwitch<Operation*, std::optional<Sources>>(op)
      .Case([&](IotaOp o) { return sameIf(int64_t(o.getAxis()) != dimension); })
      .Case([&](BroadcastOp) { return same; })
      .Case<ConcatOp, CumSumOp, GatherElementsOp>([&](auto o) { return sameIf(int64_t(o.getAxis()) != dimension); })
      .Case<ReduceOp, ReverseOp>([&](auto o) { return sameIf(!llvm::is_contained(o.getAxes(), dimension)); })
      .Case<SoftmaxOp, LogSoftmaxOp, LayerNormOp, RmsNormOp>([&](auto) -> std::optional<Sources> {
        if (dimension == rank - 1) return std::nullopt;
        return Sources{{0, dimension}};
      })
      .Case([&](PadOp o) {
        return sameIf(!o.getLow()[dimension] && !o.getHigh()[dimension] && !o.getInterior()[dimension]);
      })
      .Case([&](SliceOp o) {
        return sameIf(shapeOf(o.getOperand())[dimension] == shape[dimension] && o.getSteps()[dimension] == 1);
      })
      .Case([&](TransposeOp o) {
        return Sources{{0, o.getPermutation()[dimension]}};
      })
      .Case([&](GatherOp o) {
        const int64_t axis = o.getAxis(), count = shapeOf(o.getIndices()).size();
        if (dimension < axis) return Sources{{0, dimension}};
        return dimension < axis + count ? Sources{{1, dimension - axis}} : Sources{{0, dimension - count + 1}};
      })
      .Case([&](MatMulOp o) {
        if (dimension == rank - 2) return Sources{{0, o.getTransposeA() ? rank - 1 : rank - 2}};
        if (dimension == rank - 1) return Sources{{1, o.getTransposeB() ? rank - 2 : rank - 1}};
        return same;
      })
      .Case([&](ReshapeOp o) { return sourcesOfReshape(o, dimension, contiguous); })
      .Default([&](Operation* o) { return sameIf(o->hasTrait<OpTrait::Elementwise>()); });
}

bool hasEqualParts(ConstantOp constant, int64_t dimension, int64_t part) {
  std::optional<Constant> known = Constant::fromAttribute(constant.getValue());
  return known && known->repeats(dimension, part);
}

// Returns true if a value without rows is known to have other elements in each part of a dimension. Each value is
// looked at once: the operands of a chain may be one value.
static bool differs(Value value, int64_t inDimension, int64_t ofSize) {
  using Part = std::tuple<Value, int64_t, int64_t>;  // value, dimension, size of a part
  SmallVector<Part> pending{{value, inDimension, ofSize}};
  DenseSet<Part> seen;
  while (!pending.empty()) {
    const Part one = pending.pop_back_val();
    const auto [v, dimension, part] = one;
    Operation* op = v.getDefiningOp();
    if (!op || op->getNumResults() != 1 || op->getNumRegions() || !seen.insert(one).second) continue;
    if (auto constant = dyn_cast<ConstantOp>(op)) {
      if (!hasEqualParts(constant, dimension, part)) return true;
      continue;
    }
    if (auto iota = dyn_cast<IotaOp>(op)) {
      if (int64_t(iota.getAxis()) == dimension) return true;
      continue;
    }
    const std::optional<Sources> sources = sourcesOf(op, dimension, true);
    if (!sources) continue;
    for (auto source : *sources) {
      const Value operand = op->getOperand(source.first);
      const int64_t size = shapeOf(operand)[source.second], parts = shapeOf(v)[dimension] / part;
      if (size != 1 && size % parts == 0) pending.push_back({operand, source.second, size / parts});
    }
  }
  return false;
}

LogicalResult checkConstants(Operation* op, const BatchStates& states, bool sums) {
  OpOperand* first = firstSplitOperand(op, states);
  if (!first) return success();
  const BatchState state = states.lookup(first->get());
  const int64_t dimension = state.dimensions.front(), size = shapeOf(first->get())[dimension];
  if (state.rows == 1 || size != state.rows * state.minor) return success();
  for (OpOperand* operand : alignedOperands(op, states, dimension, size, sums))
    if (differs(operand->get(), dimension, state.minor))
      return op->emitOpError(
          "takes a constant that differs from row to row of the batch, such as a range of its size, which is not "
          "supported with more than one rank: make it an input of the model, with a row for each row of the batch");
  return success();
}

}  // namespace sheaf::train
