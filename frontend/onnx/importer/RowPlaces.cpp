// Finds where an output has the rows of the batch.
#include "frontend/onnx/importer/Importer.h"
#include "ir/Train/OpAxes.h"
#include "ir/Train/Place.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using train::Place;

ArrayRef<int64_t> shapeOf(Value v) {
  return cast<RankedTensorType>(v.getType()).getShape();
}

// Follows the rows through the ops of a step as -train-partition follows the parts of a value: each row is a part. The
// rows are the first dimension of the step's arguments. [35 * 20, V], made of [35, 20, V] with the rows second, has
// them at {0, 1}. A row is found by its distance in memory from the next, so there must be at least two.
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
      auto along = [&](Value other, int64_t dimension) {
        return train::placeAlong(shapeOf(operand.get()), *place, shapeOf(other), dimension, rows);
      };
      auto fits = [&](ValueRange values, ArrayRef<int64_t> dimensions) {
        return llvm::all_of(llvm::zip(values, dimensions), [&](auto pair) {
          auto [other, dimension] = pair;
          return dimension < 0 || along(other, dimension);
        });
      };
      for (const train::OpAxis& axis : axes) {
        if (axis.operands[operand.getOperandNumber()] != place->dimension || !fits(op->getOperands(), axis.operands) ||
            !fits(op->getResults(), axis.results))
          continue;
        for (auto [result, dimension] : llvm::zip(op->getResults(), axis.results))
          if (dimension >= 0) places[result] = *along(result, dimension);
        return true;
      }
    }
    return false;
  }

  // Rows of several values one after the other, and whole blocks of them.
  bool visitBlocks(Operation* op) {
    const auto place = of(op->getOperand(0));
    if (!place) return false;
    const int64_t d = place->dimension;
    if (auto slice = dyn_cast<train::SliceOp>(op)) {
      if (!train::takesWholeBlocks(slice.getStarts()[d], slice.getSizes()[d], slice.getSteps()[d], *place, rows))
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

// Follows the rows to the output. Where they cannot be followed, they are where the model's output has the symbol of
// the rows; without one they are taken to come first. Nothing if they cannot.
std::optional<Place> Importer::placeOfOutput(StringRef output, const Tensor& value) {
  const ArrayRef<int64_t> shape = value.shape();
  const bool followed = value.value() && rows > 1;
  if (const auto place = followed ? RowPlaces(step, rows).of(value.value()) : std::nullopt) return place;
  const onnx::ValueInfoProto* info = model.valueType(output);
  for (const onnx::ValueInfoProto* input : dataInputs) {
    const auto& dims = input->type().tensor_type().shape().dim();
    if (!info || rowDimension(*input) >= dims.size()) continue;
    const std::string& symbol = dims[int(rowDimension(*input))].dim_param();
    if (symbol.empty()) continue;
    for (auto [d, dim] : llvm::enumerate(info->type().tensor_type().shape().dim()))
      if (dim.dim_param() == symbol && d < shape.size() && shape[d] == rows) return Place{int64_t(d), 1};
  }
  if (rows == 0 || shape.empty() || shape.front() == 0 || shape.front() % rows) return std::nullopt;
  if (rows > 1)
    emitWarning(emit.location()) << "output '" << output
                                 << "': --loss cannot follow the rows of the batch to it, and assumes that they are in "
                                 << "its first dimension. If they are not, compute the loss in the model";
  return Place{0, shape.front() / rows};
}

}  // namespace sheaf::frontend
