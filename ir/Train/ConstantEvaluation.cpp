// Evaluates ops on constants: only what differs, and in slabs, so that elements are held as f64 or int64 but briefly.
#include "ir/Train/ConstantDetail.h"
#include "ir/Train/TrainDialect.h"
#include "llvm/ADT/Sequence.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/OwningOpRef.h"

using namespace mlir;
using namespace sheaf::train;
using namespace sheaf::train::constants;

namespace {

// Elements of all operands and the result that are evaluated at a time.
constexpr int64_t kSlab = int64_t(1) << 15;

// Bytes of an element while it is computed with.
constexpr int64_t kWide = 8;

using Shape = SmallVector<int64_t>;

int64_t countOf(ArrayRef<int64_t> shape) {
  return evaluator::extent(shape, 0, shape.size());
}

RankedTensorType typeOf(Value v) {
  return cast<RankedTensorType>(v.getType());
}

// The shape in which the elements of x must be stored for the op that reshapes it to keep them so, and the stored shape
// after it. Both shapes split into groups of dimensions with equal products; a group is stored once or in full.
std::pair<Shape, Shape> reshapedStorage(const Constant& x, ArrayRef<int64_t> to) {
  ArrayRef<int64_t> from = x.shape();
  Shape before(x.stored), after(to.size(), 1);
  if (x.isSplat()) return {before, after};
  for (size_t i = 0, j = 0; i < from.size() || j < to.size();) {
    size_t firstI = i, firstJ = j;
    int64_t a = i < from.size() ? from[i++] : 1, b = j < to.size() ? to[j++] : 1;
    while (a != b)
      if (a < b)
        a *= from[i++];
      else
        b *= to[j++];
    bool full = false;
    for (size_t d = firstI; d < i; ++d) full |= x.stored[d] > 1;
    for (size_t d = firstI; full && d < i; ++d) before[d] = from[d];
    for (size_t d = firstJ; full && d < j; ++d) after[d] = to[d];
  }
  return {before, after};
}

}  // namespace

ConstantEvaluation::ConstantEvaluation(Operation* op, ArrayRef<Constant> operands) : op(op), operands(operands) {
  auto type = typeOf(op->getResult(0));
  if (type.getNumElements() == 0 && op->getNumResults() == 1) {
    whole = false;
    resultStored = Shape(type.getShape());
    return;
  }
  if (isa<ReshapeOp>(op)) {
    whole = false;
    auto [before, after] = reshapedStorage(operands[0], type.getShape());
    resultStored = after;
    count(before, type.getElementType());
    return;
  }
  if (isa<BroadcastOp>(op)) {
    whole = false;
    resultStored = operands[0].stored;
    count(resultStored, type.getElementType());
    return;
  }

  becomes.assign(operands.size(), llvm::to_vector(llvm::seq<int64_t>(0, type.getRank())));
  own.assign(type.getRank(), false);
  auto looksAlong = [&](int64_t d) {
    for (auto& dims : becomes) dims[d] = -1;
    own[d] = true;
  };
  whole = !llvm::TypeSwitch<Operation*, bool>(op)
               .Case<IotaOp, ConcatOp, CumSumOp, TopKOp, GatherElementsOp>(
                   [&](auto o) { return looksAlong(o.getAxis()), true; })
               .Case<ReverseOp, ReduceOp>([&](auto o) {
                 for (int64_t axis : o.getAxes()) looksAlong(axis);
                 return true;
               })
               .Case<TransposeOp>([&](TransposeOp o) {
                 for (auto [to, from] : llvm::enumerate(o.getPermutation())) becomes[0][from] = to;
                 return true;
               })
               .Case<SliceOp>([&](SliceOp o) {
                 for (int64_t d = 0; d < type.getRank(); ++d) {
                   bool all =
                       o.getStarts()[d] == 0 && o.getSteps()[d] == 1 && o.getSizes()[d] == operands[0].shape()[d];
                   if (!all && operands[0].stored[d] != 1) looksAlong(d);
                 }
                 return true;
               })
               .Case<PadOp>([&](PadOp o) {
                 for (int64_t d = 0; d < type.getRank(); ++d)
                   if (o.getLow()[d] || o.getHigh()[d] || o.getInterior()[d]) looksAlong(d);
                 return true;
               })
               .Case<GatherOp>([&](GatherOp o) {
                 int64_t axis = o.getAxis(), indices = operands[1].type.getRank();
                 becomes[0].clear();
                 for (int64_t d = 0; d < operands[0].type.getRank(); ++d)
                   becomes[0].push_back(d < axis ? d : d == axis ? -1 : d + indices - 1);
                 becomes[1] = llvm::to_vector(llvm::seq(axis, axis + indices));
                 return true;
               })
               .Default([](Operation* other) { return other->hasTrait<OpTrait::Elementwise>(); });
  if (whole) {
    for (const Constant& x : operands) count(x.shape(), x.element());
    for (Value result : op->getResults()) count(typeOf(result).getShape(), typeOf(result).getElementType());
    resultStored = Shape(type.getShape());
    mostBytes += mostElements * kWide;
    return;
  }

  for (int64_t d = 0; d < type.getRank(); ++d) resultStored.push_back(own[d] ? type.getDimSize(d) : 1);
  for (auto [x, dims] : llvm::zip(operands, becomes))
    for (auto [d, to] : llvm::enumerate(dims))
      if (to >= 0) resultStored[to] = std::max(resultStored[to], x.stored[d]);
  for (auto [x, dims] : llvm::zip(operands, becomes)) {
    Shape shape;
    for (auto [d, to] : llvm::enumerate(dims)) shape.push_back(to < 0 ? x.shape()[d] : resultStored[to]);
    count(shape, x.element());
    taken.push_back(std::move(shape));
  }
  count(resultStored, type.getElementType());
  // The elements of a slab are held as f64 or int64: all of them where there is nothing to cut.
  int64_t size = 1, total = countOf(resultStored);
  for (int64_t d = 0; d < type.getRank(); ++d)
    if (!own[d]) size = std::max(size, resultStored[d]);
  for (const Shape& shape : taken) total += countOf(shape);
  mostBytes += total / size * kWide;
}

void ConstantEvaluation::count(ArrayRef<int64_t> shape, Type element) {
  int64_t elements = countOf(shape);
  mostElements = std::max(mostElements, elements);
  mostBytes = std::max(mostBytes, elements * widthOf(element));
}

FailureOr<SmallVector<Constant>> ConstantEvaluation::run() const {
  if (whole) return runWhole();
  auto type = typeOf(op->getResult(0));
  if (type.getNumElements() == 0) return SmallVector<Constant>{Constant::splat(type, 0)};
  if (isa<BroadcastOp>(op)) return SmallVector<Constant>{{type, operands[0].stored, operands[0].data}};
  if (isa<ReshapeOp>(op)) {
    auto [before, after] = reshapedStorage(operands[0], type.getShape());
    return SmallVector<Constant>{{type, after, storedIn(operands[0], before).data}};
  }
  FailureOr<Constant> result = runInSlabs();
  if (failed(result)) return failure();
  return SmallVector<Constant>{std::move(*result)};
}

FailureOr<SmallVector<Constant>> ConstantEvaluation::runWhole() const {
  std::vector<Tensor> values;
  for (const Constant& x : operands) values.push_back(x.elements());
  EvaluatorOptions options;
  options.round = true;
  FailureOr<std::vector<Tensor>> results = evaluate(op, values, options);
  if (failed(results)) return failure();
  SmallVector<Constant> constants;
  for (const Tensor& t : *results) constants.push_back(Constant::fromTensor(t));
  return constants;
}

// Cuts the largest dimension that the op does not look along.
FailureOr<Constant> ConstantEvaluation::runInSlabs() const {
  auto type = typeOf(op->getResult(0));
  int64_t cut = -1, size = 1, total = countOf(resultStored);
  for (int64_t d = 0; d < type.getRank(); ++d)
    if (!own[d] && resultStored[d] > size) size = resultStored[cut = d];
  for (const Shape& shape : taken) total += countOf(shape);
  int64_t length = std::clamp<int64_t>(kSlab / std::max<int64_t>(total / size, 1), 1, size);

  EvaluatorOptions options;
  options.round = true;
  Constant::Bytes bytes(countOf(resultStored) * widthOf(type.getElementType()));
  Shape strides = evaluator::stridesOf(resultStored);
  std::vector<Tensor> values(operands.size());
  OwningOpRef<Operation*> part = op->clone();
  for (int64_t start = 0; start < size; start += length) {
    int64_t now = std::min(length, size - start);
    for (auto [k, x] : llvm::enumerate(operands)) {
      Shape shape(taken[k]), from = stridesOf(x);
      int64_t offset = 0;
      bool varies = false;
      for (auto [d, to] : llvm::enumerate(becomes[k])) {
        if (to != cut || cut < 0) continue;
        varies = true;
        shape[d] = now;
        offset = start * from[d];
      }
      if (start > 0 && !varies) continue;
      values[k] = Tensor::zeros(x.type.clone(shape));
      readElements(x, shape, from, offset, values[k]);
    }
    Shape shape(resultStored);
    if (cut >= 0) shape[cut] = now;
    part.get()->getResult(0).setType(type.clone(shape));
    if (auto slice = dyn_cast<SliceOp>(part.get())) {
      Shape starts(slice.getStarts()), steps(slice.getSteps());
      for (int64_t d = 0; d < type.getRank(); ++d)
        if (!own[d]) starts[d] = 0, steps[d] = 1;
      slice.setStarts(starts);
      slice.setSizes(shape);
      slice.setSteps(steps);
    }
    FailureOr<std::vector<Tensor>> result = evaluate(part.get(), values, options);
    if (failed(result)) return failure();
    const Tensor& computed = result->front();
    withStorer(type.getElementType(), bytes.data(), [&](auto store) {
      evaluator::forEach(shape, strides, cut >= 0 ? start * strides[cut] : 0,
                         [&](int64_t index, int64_t at) { store(at, computed, index); });
    });
  }
  return withoutRepetitions(type, resultStored, std::move(bytes));
}
