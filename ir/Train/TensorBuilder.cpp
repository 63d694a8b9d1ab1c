#include "ir/Train/TensorBuilder.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;

namespace sheaf::train {

Value TensorBuilder::splat(RankedTensorType type, double value) {
  Type element = type.getElementType();
  Attribute scalar = isa<FloatType>(element) ? Attribute(FloatAttr::get(element, value))
                                             : Attribute(IntegerAttr::get(element, int64_t(value)));
  return make<ConstantOp>(DenseElementsAttr::get(type, scalar));
}

Value TensorBuilder::cast(Value a, Type elementType) {
  auto type = typeOf(a).clone(elementType);
  return a.getType() == type ? a : make<CastOp>(type, a);
}

Value TensorBuilder::reshape(Value a, ArrayRef<int64_t> shape) {
  return typeOf(a).getShape() == shape ? a : make<ReshapeOp>(withShape(a, shape), a);
}

Value TensorBuilder::broadcast(Value a, ArrayRef<int64_t> shape) {
  return typeOf(a).getShape() == shape ? a : make<BroadcastOp>(withShape(a, shape), a);
}

Value TensorBuilder::sumTo(Value a, ArrayRef<int64_t> shape) {
  ArrayRef<int64_t> from = typeOf(a).getShape();
  int64_t rank = from.size();
  SmallVector<int64_t> axes;
  for (int64_t d = 0; d < rank; ++d)
    if (from[d] != shape[d]) axes.push_back(d);
  if (axes.empty()) return a;

  // [0, head) and [tail, rank) are summed (or of size 1 anyway), [head, tail) stays.
  auto summed = [&](int64_t d) { return from[d] != shape[d] || from[d] == 1; };
  int64_t head = 0, tail = rank;
  while (head < rank && summed(head)) ++head;
  while (tail > head && summed(tail - 1)) --tail;
  bool mixed = llvm::any_of(llvm::seq(head, tail), [&](int64_t d) { return from[d] != shape[d]; });
  if (mixed) return reduce(ReduceKind::sum, a, axes);

  auto product = [&](int64_t begin, int64_t end) {
    int64_t n = 1;
    for (int64_t d = begin; d < end; ++d) n *= from[d];
    return n;
  };
  int64_t rows = product(0, head), middle = product(head, tail), columns = product(tail, rank);
  if (columns > 1) {
    // One trailing dimension is a row reduction as it stands.
    if (rows == 1 && axes.size() == 1 && axes[0] == rank - 1) return reduce(ReduceKind::sum, a, axes);
    a = reduce(ReduceKind::sum, reshape(a, {rows * middle, columns}), {1});
  }
  if (rows > 1) a = reduce(ReduceKind::sum, reshape(a, {rows, middle}), {0});
  return reshape(a, shape);
}

}  // namespace sheaf::train
