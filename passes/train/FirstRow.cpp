#include "passes/train/FirstRow.h"

#include "ir/Train/BatchNorm.h"
#include "ir/Train/Constant.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"
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
  // Where elements lie that must be equal for a half of a dimension to stand for the whole: opposite each other in both
  // halves, if each is a row, or, where a row's elements are not together, anywhere in the dimension.
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
    if (state.rows % 2 || size % 2) return emitError(v.getLoc()) << "has " << state.rows << " rows, which have no half";
    state.rows /= 2;
    v.setType(withSize(typeOf(v), dimensionOf(v), size / 2));
    return success();
  }

  LogicalResult cutOperands(Operation* op) {
    OpOperand* first = firstWithRows(op, states);
    if (!first) return success();
    const BatchState& state = states.find(first->get())->second;
    const int64_t dimension = state.dimensions.front(), half = typeOf(first->get()).getDimSize(dimension);
    const bool sums = op->getNumResults() && !isSplit(op->getResult(0));
    for (OpOperand* operand : operandsAlongRows(op, states, 2 * half, sums)) {
      Value less = halfOf(operand->get(), dimension, half == state.rows * state.minor ? kHalves : kAll);
      if (!less)
        return op->emitOpError(
            "takes a value that is the same on all ranks, but may be another for every row of the batch");
      operand->set(less);
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
    SmallVector<Value> operands(op->getOperands());
    // Of these operands, this dimension becomes that of the result; one of size 1 is for all of it.
    auto halve = [&](ArrayRef<std::pair<unsigned, int64_t>> dimensions) {
      for (auto [i, d] : dimensions)
        if (typeOf(operands[i]).getDimSize(d) != 1 && !(operands[i] = halfOf(operands[i], d, equal))) return false;
      return true;
    };
    SmallVector<std::pair<unsigned, int64_t>> same;
    for (unsigned i = 0; i < operands.size(); ++i) same.emplace_back(i, dimension);
    const int64_t size = typeOf(v).getDimSize(dimension), rank = typeOf(v).getRank();
    const bool halved =
        llvm::TypeSwitch<Operation*, bool>(op)
            .Case([&](BroadcastOp) { return halve(same); })
            .Case([&](IotaOp o) { return int64_t(o.getAxis()) != dimension; })
            .Case([&](GatherOp o) {
              const int64_t axis = o.getAxis(), count = typeOf(o.getIndices()).getRank();
              if (dimension < axis) return halve({{0, dimension}});
              return dimension < axis + count ? halve({{1, dimension - axis}}) : halve({{0, dimension - count + 1}});
            })
            .Case<SoftmaxOp, LogSoftmaxOp, LayerNormOp, RmsNormOp>([&](auto) {
              return dimension != rank - 1 && halve({{0, dimension}});
            })
            .Case([&](ReduceOp o) { return !llvm::is_contained(o.getAxes(), dimension) && halve(same); })
            .Case([&](CumSumOp o) { return int64_t(o.getAxis()) != dimension && halve(same); })
            .Case([&](ReverseOp o) { return !llvm::is_contained(o.getAxes(), dimension) && halve(same); })
            .Case([&](GatherElementsOp o) { return int64_t(o.getAxis()) != dimension && halve(same); })
            .Case([&](PadOp o) {
              return !o.getLow()[dimension] && !o.getHigh()[dimension] && !o.getInterior()[dimension] && halve(same);
            })
            .Case([&](TransposeOp o) {
              return halve({{0, o.getPermutation()[dimension]}});
            })
            .Case([&](ConcatOp o) { return int64_t(o.getAxis()) != dimension && halve(same); })
            .Case([&](SliceOp o) {
              return typeOf(o.getOperand()).getDimSize(dimension) == size && o.getSteps()[dimension] == 1 &&
                     halve(same);
            })
            .Case([&](ReshapeOp o) {
              // What lies in front of the dimension lies in front of dimension d of the operand, and the first half of
              // one is the first half of the other.
              int64_t before = 1, d = 0;
              for (int64_t n : typeOf(v).getShape().take_front(dimension)) before *= n;
              ArrayRef<int64_t> from = typeOf(o.getOperand()).getShape();
              for (; d < int64_t(from.size()) && from[d] > 0 && (before > 1 || from[d] == 1) && before % from[d] == 0;
                   ++d)
                before /= from[d];
              return before == 1 && d < int64_t(from.size()) && from[d] % (equal == kHalves ? 2 : size) == 0 &&
                     halve({{0, d}});
            })
            .Case([&](MatMulOp o) {
              if (dimension == rank - 2) return halve({{0, o.getTransposeA() ? rank - 1 : rank - 2}});
              if (dimension == rank - 1) return halve({{1, o.getTransposeB() ? rank - 2 : rank - 1}});
              return halve({{0, 0}, {1, 0}});
            })
            .Default([&](Operation* o) { return o->hasTrait<OpTrait::Elementwise>() && halve(same); });
    if (!halved) return {};
    builder.setInsertionPointAfter(op);
    Operation* own = builder.clone(*op);
    own->setOperands(operands);
    Value half = own->getResult(0);
    half.setType(withSize(typeOf(v), dimension, size / 2));
    if (auto slice = dyn_cast<SliceOp>(own)) slice.setSizes(typeOf(half).getShape());
    return half;
  }

  Value halfOfConstant(Value v, int64_t dimension, Equal equal) {
    auto constant = v.getDefiningOp<ConstantOp>();
    const int64_t size = typeOf(v).getDimSize(dimension);
    if (!hasEqualParts(constant, dimension, equal == kHalves ? size / 2 : 1)) return {};
    builder.setInsertionPointAfterValue(v);
    SmallVector<int64_t> sizes(typeOf(v).getShape()), starts(sizes.size(), 0), steps(sizes.size(), 1);
    sizes[dimension] = size / 2;
    auto slice = SliceOp::create(builder, v.getLoc(), v, starts, sizes, steps);
    auto values = ConstantEvaluation(slice, *Constant::fromAttribute(constant.getValue())).run();
    slice.erase();
    return failed(values) ? Value() : materialize(builder, v.getLoc(), values->front());
  }
};

}  // namespace

LogicalResult cutToFirstRow(func::FuncOp step, BatchStates& states) {
  return Cutter(step, states).run();
}

}  // namespace sheaf::train
