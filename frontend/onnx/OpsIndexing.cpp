// Operators that select elements by index.
#include "frontend/onnx/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;

LogicalResult gather(Node& n) {
  Tensor data = n.input(0);
  int64_t axis = n.integer("axis", 0);
  if (!n.emit.checkAxis(axis, data.rank())) return failure();
  return n.set(0, n.emit.gather(data, n.input(1), axis));
}

// Indices as i64 and counted from the start.
Tensor positive(Emitter& e, const Tensor& indices, int64_t size) {
  Tensor wide = e.cast(indices, e.ops().getI64Type());
  if (!wide) return {};
  Tensor negative = e.compare(Predicate::lt, wide, e.splatLike(wide, 0));
  return e.select(negative, e.scalar<train::AddOp>(wide, double(size)), wide);
}

LogicalResult gatherNd(Node& n) {
  Emitter& e = n.emit;
  Tensor data = n.input(0), indices = n.input(1);
  const int64_t batch = n.integer("batch_dims", 0);
  bool fits = indices.rank() >= 1 && !indices.isFloat() && !indices.isBool() && batch >= 0 && batch < indices.rank() &&
              batch < data.rank() && indices.shape().back() >= 1 && indices.shape().back() <= data.rank() - batch;
  for (int64_t d = 0; fits && d < batch; ++d) fits = indices.dim(d) == data.dim(d);
  if (!fits)
    return n.error() << "the last dimension of the indices must name one to all dimensions of the data after the "
                     << batch << " of the batch, which both share";
  const int64_t tuple = indices.shape().back();
  const Shape places(indices.shape().drop_back());
  Shape shape = places;
  llvm::append_range(shape, data.shape().drop_front(batch + tuple));
  if (!e.checkShape(shape)) return failure();
  // The indexed dimensions as one, indexed by the position in it; those of the batch by the row itself.
  Shape rows{1};
  llvm::append_range(rows, data.shape().drop_front(batch + tuple));
  Tensor position;
  for (int64_t d = 0; d < batch + tuple; ++d) {
    rows[0] *= data.dim(d);
    Tensor index = d < batch ? e.iota(e.ops().getI64Type(), places, d)
                             : e.reshape(e.sliceAlong(indices, indices.rank() - 1, d - batch, 1), places);
    if (d >= batch) index = positive(e, index, data.dim(d));
    position = d ? e.binary<train::AddOp>(e.scalar<train::MulOp>(position, double(data.dim(d))), index) : index;
  }
  return n.set(0, e.gather(e.reshape(data, rows), position, 0));
}

LogicalResult gatherElements(Node& n) {
  Emitter& e = n.emit;
  Tensor data = n.input(0), indices = n.input(1);
  int64_t axis = n.integer("axis", 0);
  if (!e.checkAxis(axis, data.rank())) return failure();
  if (indices.rank() != data.rank() || indices.isFloat() || indices.isBool())
    return n.error() << "takes integer indices of the data's rank";
  for (int64_t d = 0; d < data.rank(); ++d)
    if (d != axis && indices.dim(d) > data.dim(d)) return n.error() << "the indices are larger than the data";
  // The data as one dimension, indexed by the position in it.
  Tensor position;
  int64_t stride = 1;
  for (int64_t d = data.rank(); d-- > 0; stride *= data.dim(d)) {
    Tensor index = d == axis ? positive(e, indices, data.dim(d)) : e.iota(e.ops().getI64Type(), indices.shape(), d);
    index = e.scalar<train::MulOp>(index, double(stride));
    position = position ? e.binary<train::AddOp>(position, index) : index;
  }
  return n.set(0, e.gather(e.reshape(data, {data.count()}), position, 0));
}

LogicalResult oneHot(Node& n) {
  Emitter& e = n.emit;
  Tensor indices = n.input(0), values = n.input(2);
  if (!n.input(1).constant() || n.input(1).count() != 1 || values.rank() != 1 || values.dim(0) != 2)
    return n.error() << "takes a known depth and two values";
  double size = n.input(1).constant()->splatValue();
  if (!(size >= 1 && size <= double(kMaxElements))) return n.error() << "a depth of " << size << " is out of range";
  int64_t depth = int64_t(size), axis = n.integer("axis", -1);
  if (!e.checkAxis(axis, indices.rank() + 1)) return failure();
  Shape shape(indices.shape()), full;
  shape.insert(shape.begin() + axis, 1);
  full = shape;
  full[axis] = depth;
  if (!e.checkShape(full)) return failure();
  // Indices count from the end since opset 11; before, a negative one is not a class.
  Tensor classes = n.opset < 11 ? e.cast(indices, e.ops().getI64Type()) : positive(e, indices, depth);
  Tensor where = e.expand(e.reshape(classes, shape), full);
  Tensor hot = e.compare(Predicate::eq, where, e.iota(e.ops().getI64Type(), full, axis));
  Tensor off = e.reshape(e.slice(values, {0}, {1}, {1}), {}), on = e.reshape(e.slice(values, {1}, {1}, {1}), {});
  return n.set(0, e.select(hot, on, off));
}

LogicalResult cumsum(Node& n) {
  auto axes = n.knownIntegers(1, "the axis");
  if (!axes || axes->size() != 1) return failure();
  int64_t axis = axes->front();
  if (!n.emit.checkAxis(axis, n.input(0).rank())) return failure();
  return n.set(0, n.emit.cumsum(n.input(0), axis, n.integer("exclusive", 0), n.integer("reverse", 0)));
}

constexpr Operator kOperators[] = {
    {"Gather", 1, 0, 2, gather}, {"GatherND", 11, 0, 2, gatherNd}, {"GatherElements", 11, 0, 2, gatherElements},
    {"OneHot", 9, 0, 3, oneHot}, {"CumSum", 11, 0, 2, cumsum},
};

}  // namespace

ArrayRef<Operator> indexingOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
