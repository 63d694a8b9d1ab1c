#include "passes/train/FirstRow.h"

#include "ir/Train/Constant.h"
#include "ir/Train/TensorBuilder.h"
#include "mlir/IR/Verifier.h"

using namespace mlir;

namespace sheaf::train {
namespace {

RankedTensorType typeOf(Value v) {
  return TensorBuilder::typeOf(v);
}

RankedTensorType withSize(RankedTensorType type, int64_t dimension, int64_t size) {
  SmallVector<int64_t> shape(type.getShape());
  shape[dimension] = size;
  return type.clone(shape);
}

class Cutter {
 public:
  Cutter(func::FuncOp step, BatchStates& states) : step(step), states(states), builder(step.getContext()) {}

  LogicalResult run() {
    Block& body = step.getBody().front();
    for (BlockArgument argument : body.getArguments())
      if (failed(cut(argument))) return failure();
    for (Operation& op : llvm::make_early_inc_range(body)) {
      if (failed(cutOperands(&op))) return failure();
      for (Value result : op.getResults())
        if (failed(cut(result))) return failure();
      if (auto slice = dyn_cast<SliceOp>(op)) slice.setSizes(typeOf(slice.getResult()).getShape());
    }
    step.setType(FunctionType::get(step.getContext(), body.getArgumentTypes(), step.getFunctionType().getResults()));
    return verify(step);
  }

 private:
  func::FuncOp step;
  BatchStates& states;
  OpBuilder builder;
  // When half of a dimension may replace all of it. kHalves: each row is contiguous, so the two halves must be equal.
  // kAll: the rows are interleaved, so all elements must be equal.
  enum Equal { kHalves, kAll };
  DenseMap<std::pair<Value, int64_t>, Value> halves[2];  // of values without rows, by dimension

  bool isSplit(Value v) const {
    auto found = states.find(v);
    return found != states.end() && found->second.isSplit();
  }
  int64_t dimensionOf(Value v) const { return states.find(v)->second.dimensions.front(); }

  LogicalResult cut(Value v) {
    if (!isSplit(v)) return success();
    BatchState& state = states.find(v)->second;
    const int64_t size = typeOf(v).getDimSize(dimensionOf(v));
    if (state.rows % 2 || size % 2) return emitError(v.getLoc()) << "has " << state.rows << " rows, which are odd";
    state.rows /= 2;
    // A constant with the same for each row.
    if (auto constant = v.getDefiningOp<ConstantOp>()) {
      const Constant half = Constant::fromAttribute(constant.getValue())->first(dimensionOf(v), size / 2);
      constant.setValueAttr(half.written().attribute());
    }
    v.setType(withSize(typeOf(v), dimensionOf(v), size / 2));
    return success();
  }

  LogicalResult cutOperands(Operation* op) {
    OpOperand* first = firstSplitOperand(op, states);
    if (!first) return success();
    const BatchState& state = states.find(first->get())->second;
    const int64_t dimension = state.dimensions.front(), cutSize = typeOf(first->get()).getDimSize(dimension);
    const bool sums = op->getNumResults() && !isSplit(op->getResult(0));
    for (OpOperand* operand : alignedOperands(op, states, dimension, 2 * cutSize, sums)) {
      Value half = halfOf(operand->get(), dimension, cutSize == state.rows * state.minor ? kHalves : kAll);
      if (!half)
        return op->emitOpError(
            "combines rows of the batch with a value that is the same on all ranks and may differ from row to row, "
            "which "
            "is not supported with more than one rank: make it an input of the model, with a row for each row of the "
            "batch");
      operand->set(half);
    }
    return success();
  }

  // Half of a dimension of a value without rows; nothing if it is not known that the elements are equal.
  Value halfOf(Value v, int64_t dimension, Equal equal) {
    auto [known, isNew] = halves[equal].try_emplace({v, dimension});
    if (!isNew) return known->second;
    Value half = makeHalf(v, dimension, equal);
    return halves[equal][{v, dimension}] = half;
  }

  Value makeHalf(Value v, int64_t dimension, Equal equal) {
    Operation* op = v.getDefiningOp();
    if (!op || !isPure(op) || op->getNumRegions() || op->getNumResults() != 1) return {};
    if (isa<ConstantOp>(op)) return halfOfConstant(v, dimension, equal);
    std::optional<Sources> sources = sourcesOf(op, dimension, equal == kHalves);
    if (!sources) return {};
    SmallVector<Value> operands(op->getOperands());
    for (auto [i, d] : *sources) {
      const int64_t size = typeOf(operands[i]).getDimSize(d);
      if (size == 1) continue;
      if (size % 2 || !(operands[i] = halfOf(operands[i], d, equal))) return {};
    }
    builder.setInsertionPointAfter(op);
    Operation* clone = builder.clone(*op);
    clone->setOperands(operands);
    Value half = clone->getResult(0);
    half.setType(withSize(typeOf(v), dimension, typeOf(v).getDimSize(dimension) / 2));
    if (auto slice = dyn_cast<SliceOp>(clone)) slice.setSizes(typeOf(half).getShape());
    return half;
  }

  Value halfOfConstant(Value v, int64_t dimension, Equal equal) {
    auto constant = v.getDefiningOp<ConstantOp>();
    const int64_t size = typeOf(v).getDimSize(dimension);
    if (!hasEqualParts(constant, dimension, equal == kHalves ? size / 2 : 1)) return {};
    builder.setInsertionPointAfterValue(v);
    return materialize(builder, v.getLoc(), Constant::fromAttribute(constant.getValue())->first(dimension, size / 2));
  }
};

}  // namespace

LogicalResult cutToFirstRow(func::FuncOp step, BatchStates& states) {
  return Cutter(step, states).run();
}

}  // namespace sheaf::train
