#include "frontend/onnx/importer/RowPlaces.h"

#include "ir/Train/BatchNorm.h"
#include "ir/Train/OpAxes.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using train::Place;

ArrayRef<int64_t> shapeOf(Value v) {
  return cast<RankedTensorType>(v.getType()).getShape();
}

// As -train-partition follows the parts of a value, with each row as a part.
class RowPlaces {
 public:
  RowPlaces(func::FuncOp step, int64_t rows) : rows(rows) {
    for (BlockArgument argument : step.getArguments())
      if (!step.getArgAttr(argument.getArgNumber(), "train.whole") && !shapeOf(argument).empty() &&
          shapeOf(argument)[0] == rows)
        places[argument] = {0, 1};
    for (Operation& op : step.getBody().front()) visit(&op);
  }

  std::optional<Place> of(Value v) const {
    auto found = places.find(v);
    return found == places.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void visit(Operation* op) {
    if (auto reshape = dyn_cast<train::ReshapeOp>(op)) {
      auto from = of(reshape.getOperand());
      auto to = from ? train::reshapedPlace(shapeOf(reshape.getOperand()), shapeOf(reshape.getResult()), *from, rows)
                     : std::nullopt;
      if (to) places[reshape.getResult()] = *to;
      return;
    }
    const auto first = llvm::find_if(op->getOperands(), [&](Value v) { return places.contains(v); });
    if (first == op->operand_end() || visitAxes(op) || visitBlocks(op)) return;
    // An op that mixes rows, such as a softmax over them, keeps their dimension.
    const Place place = places.lookup(*first);
    const ArrayRef<int64_t> was = shapeOf(*first);
    for (Value result : op->getResults())
      if (const auto shape = shapeOf(result);
          shape.size() == was.size() && shape[place.dimension] == was[place.dimension])
        places[result] = place;
  }

  bool visitAxes(Operation* op) {
    const SmallVector<train::OpAxis> axes = train::axesOf(op, shapeOf);
    for (OpOperand& operand : op->getOpOperands()) {
      const auto place = of(operand.get());
      if (!place) continue;
      for (const train::OpAxis& axis : axes) {
        if (axis.operands[operand.getOperandNumber()] != place->dimension) continue;
        SmallVector<std::pair<Value, Place>> found;
        bool fits = true;
        auto follow = [&](Value other, int64_t dimension) {
          if (dimension < 0) return;
          const int64_t from = shapeOf(operand.get())[place->dimension], to = shapeOf(other)[dimension];
          const int64_t run = from ? place->run * to / from : 0;
          fits &= run > 0 && place->run * to % from == 0 && to % (run * rows) == 0;
          found.emplace_back(other, Place{dimension, run});
        };
        for (auto [other, dimension] : llvm::zip(op->getOperands(), axis.operands)) follow(other, dimension);
        found.clear();
        for (auto [result, dimension] : llvm::zip(op->getResults(), axis.results)) follow(result, dimension);
        if (!fits) continue;
        for (auto [result, at] : found) places[result] = at;
        return true;
      }
    }
    return false;
  }

  // Rows of several values one after the other, and whole blocks of them.
  bool visitBlocks(Operation* op) {
    const auto place = of(op->getOperand(0));
    if (!place) return false;
    const int64_t d = place->dimension, block = place->run * rows;
    if (auto slice = dyn_cast<train::SliceOp>(op)) {
      if (slice.getSteps()[d] != 1 || slice.getStarts()[d] % block || slice.getSizes()[d] % block ||
          !slice.getSizes()[d])
        return false;
    } else {
      auto concat = dyn_cast<train::ConcatOp>(op);
      if (!concat || int64_t(concat.getAxis()) != d ||
          llvm::any_of(op->getOperands(), [&](Value v) { return of(v) != place; }))
        return false;
    }
    places[op->getResult(0)] = *place;
    return true;
  }

  const int64_t rows;
  llvm::DenseMap<Value, Place> places;
};

}  // namespace

std::optional<Place> placeOfRows(func::FuncOp step, Value value, int64_t rows) {
  return rows > 1 ? RowPlaces(step, rows).of(value) : std::nullopt;
}

}  // namespace sheaf::frontend
