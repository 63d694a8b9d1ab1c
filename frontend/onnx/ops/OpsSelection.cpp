// Operators that choose elements by their size, or place elements by index.
#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Kind = train::ScatterKind;
using Predicate = train::ComparePredicate;

// What train.top_k takes: integers of at least 32 bits.
Tensor comparable(Emitter& e, const Tensor& x) {
  return !x.isFloat() && x.elementType().getIntOrFloatBitWidth() < 32 ? e.cast(x, e.ops().getI32Type()) : x;
}

LogicalResult topK(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", -1), k = n.integer("k", 0);
  if (x.isBool()) return n.error() << "takes numbers";
  if (!e.checkAxis(axis, x.rank())) return failure();
  if (n.opset >= 10) {
    auto known = n.knownIntegers(1, "k");
    if (!known) return failure();
    if (known->size() != 1) return n.error() << "takes one k";
    k = known->front();
  }
  if (k < 1 || k > x.dim(axis))
    return n.error() << "k is " << k << ", but must be at least 1 and at most " << x.dim(axis)
                     << ", the size of dimension " << axis;
  // `sorted` = 0 leaves the order open.
  Tensor indices = e.topK(comparable(e, x), axis, k, n.integer("largest", 1) != 0);
  if (!indices || failed(n.set(1, indices))) return failure();
  return n.uses(0) ? n.set(0, e.gatherElements(x, indices, axis)) : success();
}

// The index of the largest (else smallest) element, the first or the last of equal ones. Axes stay as size 1. A NaN
// comes before all numbers, in both, as in PyTorch and numpy.
Tensor extremum(Node& n, Tensor x, int64_t axis, bool largest, bool last) {
  Emitter& e = n.emit;
  x = comparable(e, x);
  if (!largest && x.isFloat()) x = e.unary<train::NegOp>(x), largest = true;
  if (!last) return e.topK(x, axis, 1, largest);
  // The first one from the end.
  Shape starts(x.rank(), 0), steps(x.rank(), 1);
  starts[axis] = x.dim(axis) - 1, steps[axis] = -1;
  Tensor index = e.topK(e.slice(x, starts, x.shape(), steps), axis, 1, largest);
  return index ? e.binary<train::SubOp>(e.splatLike(index, double(x.dim(axis) - 1)), index) : index;
}

template <bool largest>
LogicalResult argument(Node& n) {
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", 0);
  if (x.isBool()) return n.error() << "takes numbers";
  if (!n.emit.checkAxis(axis, x.rank())) return failure();
  if (x.dim(axis) == 0) return n.error() << "takes at least one element";
  Tensor index = extremum(n, x, axis, largest, n.integer("select_last_index", 0) != 0);
  Shape shape(x.shape());
  if (n.integer("keepdims", 1))
    shape[axis] = 1;
  else
    shape.erase(shape.begin() + axis);
  return n.set(0, n.emit.reshape(index, shape));
}

std::optional<Kind> reductionOf(Node& n) {
  StringRef reduction = n.string("reduction", "none");
  if (reduction == "none") return Kind::replace;
  if (auto kind = train::symbolizeScatterKind(reduction); kind && *kind != Kind::replace) return kind;
  n.error() << "reduction '" << reduction << "' is not supported";
  return std::nullopt;
}

// Updates are combined with i32 where the elements are narrower; casting back gives the bits of the narrow type, and
// of booleans their product or sum, and or or.
Tensor scatter(Node& n, Kind kind, const Tensor& data, const Tensor& indices, const Tensor& update, int64_t axis) {
  Emitter& e = n.emit;
  if (!data || !update) return {};
  Type element = data.elementType();
  if (kind == Kind::replace || data.isFloat() || element.getIntOrFloatBitWidth() >= 32)
    return e.scatter(kind, data, indices, update, axis);
  Type wide = e.ops().getI32Type();
  return e.cast(e.scatter(kind, e.cast(data, wide), indices, e.cast(update, wide), axis), element);
}

LogicalResult scatterElements(Node& n) {
  Emitter& e = n.emit;
  Tensor data = n.input(0), indices = n.input(1), update = n.input(2);
  int64_t axis = n.integer("axis", 0);
  auto kind = reductionOf(n);
  if (!kind || !e.checkAxis(axis, data.rank())) return failure();
  if (indices.rank() != data.rank() || indices.shape() != update.shape() || update.elementType() != data.elementType())
    return n.error() << "takes indices and updates of the data's rank and of one shape, and updates of the data's type";
  if (update.count() == 0) return n.set(0, data);
  if (data.count() == 0) return n.error() << "the data has no elements that the indices could name";
  // The part of the data that the indices can name; what lies beyond is put back, one dimension after the other.
  Tensor part = data;
  SmallVector<std::pair<int64_t, Tensor>> rest;
  for (int64_t d = 0; d < data.rank(); ++d) {
    const int64_t size = indices.dim(d);
    if (d == axis || size == data.dim(d)) continue;
    if (size > data.dim(d)) return n.error() << "the indices are larger than the data";
    Shape starts(data.rank(), 0), sizes(part.shape()), steps(data.rank(), 1);
    starts[d] = size, sizes[d] = data.dim(d) - size;
    rest.push_back({d, e.slice(part, starts, sizes, steps)});
    starts[d] = 0, sizes[d] = size;
    part = e.slice(part, starts, sizes, steps);
    if (!part) return failure();
  }
  Tensor result = scatter(n, *kind, part, indices, update, axis);
  for (auto& [d, beyond] : llvm::reverse(rest)) result = result ? e.concat({result, beyond}, d) : result;
  return n.set(0, result);
}

LogicalResult scatterNd(Node& n) {
  Emitter& e = n.emit;
  Tensor data = n.input(0), indices = n.input(1), update = n.input(2);
  auto kind = reductionOf(n);
  if (!kind) return failure();
  if (indices.rank() < 1 || indices.isFloat() || indices.isBool() || indices.shape().back() > data.rank() ||
      indices.shape().back() < 1)
    return n.error() << "the last dimension of the indices must name one to all dimensions of the data";
  const int64_t tuple = indices.shape().back();
  Shape shape(indices.shape().drop_back());
  llvm::append_range(shape, data.shape().drop_front(tuple));
  if (update.shape() != ArrayRef<int64_t>(shape) || update.elementType() != data.elementType())
    return n.error() << "the updates do not fit the indices and the data";
  if (update.count() == 0) return n.set(0, data);
  if (data.count() == 0) return n.error() << "the data has no elements that the indices could name";
  // The dimensions that are indexed as one, by the position in it. A tuple with an index out of range has none.
  int64_t rows = 1, count = indices.count() / tuple;
  for (int64_t d = 0; d < tuple; ++d) rows *= data.dim(d);
  const int64_t inner = data.count() / std::max<int64_t>(rows, 1);
  Tensor position, flat = e.reshape(e.cast(indices, e.ops().getI64Type()), {count, tuple});
  Tensor wrong;
  // Each column reads all of known indices.
  if (failed(n.importer.countElements(tuple * indices.storedCount()))) return failure();
  for (int64_t d = 0; d < tuple; ++d) {
    const double size = double(data.dim(d));
    Tensor index = e.slice(flat, {0, d}, {count, 1}, {1, 1});
    if (!index) return failure();
    if (tuple > 1) {
      Tensor outside = e.binary<train::OrOp>(e.compare(Predicate::lt, index, e.splatLike(index, -size)),
                                             e.compare(Predicate::ge, index, e.splatLike(index, size)));
      wrong = wrong ? e.binary<train::OrOp>(wrong, outside) : outside;
      Tensor negative = e.compare(Predicate::lt, index, e.splatLike(index, 0));
      index = e.select(negative, e.scalar<train::AddOp>(index, size), index);
    }
    position = d ? e.binary<train::AddOp>(e.scalar<train::MulOp>(position, size), index) : index;
  }
  if (wrong) position = e.select(wrong, e.splatLike(position, double(rows)), position);
  Tensor result = scatter(n, *kind, e.reshape(data, {rows, inner}), position, e.reshape(update, {count, inner}), 0);
  return n.set(0, e.reshape(result, data.shape()));
}

constexpr Operator kOperators[] = {
    {"TopK", 1, 0, 1, topK, {.sample = "f[2,3], {2}; outputs=2", .limits = "k known when the graph is compiled"}},
    {"ArgMax", 1, 0, 1, argument<true>},
    {"ArgMin", 1, 0, 1, argument<false>},
    {"Scatter", 9, 10, 3, scatterElements, {.sample = "f[4,3], i[2,3], f[2,3]"}},
    {"ScatterElements", 11, 0, 3, scatterElements, {.sample = "f[4,3], i[2,3], f[2,3]"}},
    {"ScatterND", 11, 0, 3, scatterNd, {.sample = "f[4,3], i[2,1], f[2,3]"}},
};

}  // namespace

ArrayRef<Operator> selectionOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
