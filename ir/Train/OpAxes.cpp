#include "ir/Train/OpAxes.h"

#include "ir/Train/BatchNorm.h"
#include "ir/Train/StopGradient.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace sheaf::train {
namespace {

bool isFloat(Value v) {
  return isa<FloatType>(TensorBuilder::typeOf(v).getElementType());
}

class Axes {
 public:
  Axes(Operation* op, ShapeOf shapeOf) : op(op), shapeOf(shapeOf) {}

  SmallVector<OpAxis> take() { return std::move(found); }

  int64_t rankOf(Value v) const { return int64_t(shapeOf(v).size()); }
  int64_t size(Value v, int64_t d) const { return shapeOf(v)[d]; }

  OpAxis& add(ArrayRef<int64_t> operands, ArrayRef<int64_t> results) {
    return found.emplace_back(OpAxis{SmallVector<int64_t, 4>(operands), SmallVector<int64_t, 4>(results)});
  }
  void addSummed(ArrayRef<int64_t> operands) {
    add(operands, SmallVector<int64_t>(op->getNumResults(), -1)).summed = true;
  }
  // Dimension d of every operand and result.
  void addEverywhere(int64_t d) {
    add(SmallVector<int64_t>(op->getNumOperands(), d), SmallVector<int64_t>(op->getNumResults(), d));
  }
  // Dimension d of the first operand and of every result.
  void addOfFirst(int64_t d) {
    SmallVector<int64_t> operands(op->getNumOperands(), -1);
    operands.front() = d;
    add(operands, SmallVector<int64_t>(op->getNumResults(), d));
  }
  // The dimensions of the first operand but those given, which all results have in the same place.
  void addOthers(ArrayRef<int64_t> but, bool everywhere) {
    for (int64_t d = 0; d < rankOf(op->getOperand(0)); ++d)
      if (!llvm::is_contained(but, d)) everywhere ? addEverywhere(d) : addOfFirst(d);
  }

  void visit() {
    llvm::TypeSwitch<Operation*>(op)
        .Case([&](BroadcastOp o) {
          for (int64_t d = 0; d < rankOf(o.getResult()); ++d)
            add({size(o.getOperand(), d) == size(o.getResult(), d) ? d : -1}, {d});
        })
        .Case([&](TransposeOp o) {
          for (auto [d, from] : llvm::enumerate(o.getPermutation())) add({from}, {int64_t(d)});
        })
        .Case([&](SliceOp o) {
          for (int64_t d = 0; d < rankOf(o.getResult()); ++d)
            if (o.getStarts()[d] == 0 && o.getSteps()[d] == 1 && size(o.getOperand(), d) == size(o.getResult(), d))
              addEverywhere(d);
        })
        .Case([&](PadOp o) {
          for (int64_t d = 0; d < rankOf(o.getResult()); ++d)
            if (!o.getLow()[d] && !o.getHigh()[d] && !o.getInterior()[d]) addEverywhere(d);
        })
        .Case([&](ReverseOp o) { addOthers(o.getAxes(), false); })
        .Case([&](ConcatOp o) { addOthers(int64_t(o.getAxis()), true); })
        .Case<CumSumOp, TopKOp>([&](auto o) { addOthers(int64_t(o.getAxis()), false); })
        .Case<SoftmaxOp, LogSoftmaxOp, LayerNormOp, RmsNormOp>(
            [&](auto) { addOthers(rankOf(op->getOperand(0)) - 1, false); })
        .Case([&](ReduceOp o) { visitReduce(o); })
        .Case([&](MatMulOp o) { visitMatMul(o); })
        .Case([&](GatherOp o) {
          const int64_t axis = o.getAxis(), count = rankOf(o.getIndices());
          for (int64_t d = 0; d < rankOf(o.getData()); ++d)
            if (d != axis) add({d, -1}, {d < axis ? d : d - 1 + count});
          for (int64_t d = 0; d < count; ++d) add({-1, d}, {axis + d});
        })
        .Case([&](ScatterAddOp o) {
          const int64_t axis = o.getAxis(), count = rankOf(o.getIndices());
          for (int64_t d = 0; d < rankOf(o.getUpdate()); ++d)
            if (d >= axis && d < axis + count)
              addSummed({d, d - axis});
            else
              add({d, -1}, {d < axis ? d : d - count + 1});
        })
        .Case([&](GatherElementsOp o) {
          for (int64_t d = 0; d < rankOf(o.getResult()); ++d) {
            const bool own = size(o.getIndices(), d) == size(o.getResult(), d);
            if (d != int64_t(o.getAxis())) add({d, own ? d : -1}, {d});
            // All entries along the axis use their own indices of all data.
            if (d == int64_t(o.getAxis())) add({-1, d}, {d});
          }
        })
        .Case([&](ScatterOp o) { visitScatter(o); })
        .Case([&](AttentionOp o) {
          SmallVector<int64_t> operands(op->getNumOperands(), 0);
          if (o.getMask() && size(o.getMask(), 0) != size(o.getQuery(), 0)) operands.back() = -1;
          add(operands, {0, 0});
        })
        .Case([&](CrossEntropyOp) { addEverywhere(0); })
        .Case<ConvOp, ConvGradInputOp, MaxPoolOp, MaxPoolIndicesOp>([&](auto) { addOfFirst(0); })
        .Case([&](MaxPoolGradOp) { addEverywhere(0); })
        .Case([&](ConvGradFilterOp) {
          addSummed({0, 0});
        })
        .Case<DropoutOp, RandomUniformOp, ReshapeOp, BatchNormOp, GlobalSumOp>([](auto) {})
        .Default([&](Operation*) {
          auto alike = [&](Value v) { return shapeOf(v) == shapeOf(op->getResult(0)); };
          if (op->getNumRegions() == 0 && op->getNumResults() == 1 && op->getNumOperands() > 0 && isPure(op) &&
              llvm::all_of(op->getOperands(), alike))
            addOthers({}, true);
        });
  }

 private:
  Operation* op;
  ShapeOf shapeOf;
  SmallVector<OpAxis> found;

  // Each part of a sum, and of a mean, gives a term.
  void visitReduce(ReduceOp o) {
    for (int64_t d = 0; d < rankOf(o.getOperand()); ++d)
      if (!llvm::is_contained(o.getAxes(), d))
        addEverywhere(d);
      else if (o.getKind() == ReduceKind::sum || (o.getKind() == ReduceKind::mean && isFloat(o.getResult())))
        addSummed({d});
  }

  void visitMatMul(MatMulOp o) {
    const int64_t rank = rankOf(o.getResult()), rows = rank - 2, columns = rank - 1;
    if (rank == 3) addEverywhere(0);
    add({o.getTransposeA() ? columns : rows, -1}, {rows});
    add({-1, o.getTransposeB() ? rows : columns}, {columns});
    addSummed({o.getTransposeA() ? rows : columns, o.getTransposeB() ? columns : rows});
  }

  // Operands: indices, update, and perhaps data.
  void visitScatter(ScatterOp o) {
    const int64_t axis = o.getAxis();
    for (int64_t d = 0; d < rankOf(o.getUpdate()); ++d) {
      const bool own = size(o.getIndices(), d) == size(o.getUpdate(), d);
      SmallVector<int64_t> operands{own ? d : -1, d};
      if (d != axis) {
        if (o.getData()) operands.push_back(d);
        add(operands, {d});
      } else if (own && o.getKind() == ScatterKind::add && isFloat(o.getResult())) {
        if (o.getData()) operands.push_back(-1);
        addSummed(operands);
        if (o.getData()) found.back().addedOnce = 2;
      }
    }
  }
};

}  // namespace

SmallVector<OpAxis> axesOf(Operation* op, ShapeOf shapeOf) {
  Axes axes(op, shapeOf);
  axes.visit();
  return axes.take();
}

bool isLinear(Operation* op, unsigned operand) {
  return llvm::TypeSwitch<Operation*, bool>(op)
      .Case<NegOp, ReshapeOp, BroadcastOp, TransposeOp, SliceOp, PadOp, ReverseOp, CumSumOp, MatMulOp>(
          [](auto) { return true; })
      .Case([&](CastOp o) { return isFloat(o.getResult()); })
      .Case([&](ReduceOp o) {
        return o.getKind() == ReduceKind::sum || (o.getKind() == ReduceKind::mean && isFloat(o.getResult()));
      })
      .Case([&](MulOp o) { return o.getLhs() != o.getRhs(); })
      .Case([&](DivOp o) { return operand == 0 && o.getLhs() != o.getRhs() && isFloat(o.getResult()); })
      .Case<GatherOp, GatherElementsOp, ScatterAddOp>([&](auto) { return operand == 0; })
      .Default(false);
}

}  // namespace sheaf::train
