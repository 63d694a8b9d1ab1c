// Operators that select elements by index.
#include "frontend/onnx/Importer.h"
#include "frontend/onnx/Labels.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;

// An argument of aten.embedding(table, indices, padding_idx, scale_grad_by_freq, sparse), if the node was exported
// from it; empty if it is left out.
StringRef embeddingArgument(const Node& n, size_t at) {
  SmallVector<StringRef> arguments;
  n.torchExpression().split("aten.embedding.default](args = (").second.split(')').first.split(arguments, ", ");
  return at < arguments.size() ? arguments[at] : StringRef();
}

// Rows of a table, by PyTorch's rules of its gradient: the row padding_idx has none.
Tensor embedding(Node& n, const Tensor& table, const Tensor& indices) {
  Emitter& e = n.emit;
  Tensor rows = e.gather(table, indices, 0);
  if (n.importer.evaluates()) return rows;
  if (embeddingArgument(n, 3) == "True" && n.importer.warned.insert("frequency").second)
    emitWarning(e.location()) << "scale_grad_by_freq of the embedding is not in the graph: here the gradients of its "
                                 "rows are not divided by how often they occur";
  int64_t padding = -1;
  if (embeddingArgument(n, 2).getAsInteger(10, padding) || padding < 0) return rows;
  Tensor wide = e.cast(indices, e.ops().getI64Type());
  if (wide && wide.constant() && !llvm::is_contained(wide.constant()->integers(), padding)) return rows;
  Shape shape(indices.shape());
  shape.push_back(1);
  Tensor hit = e.compare(Predicate::eq, wide, e.splatLike(wide, double(padding)));
  return e.select(e.expand(e.reshape(hit, shape), rows.shape()), e.stopGradient(rows), rows);
}

LogicalResult gather(Node& n) {
  Tensor data = n.input(0), indices = n.input(1);
  int64_t axis = n.integer("axis", 0);
  if (!n.emit.checkAxis(axis, data.rank())) return failure();
  // Everything in its order, as in torch.as_strided of a contiguous tensor. Of a parameter it stays a look-up: that is
  // how an embedding is recognised.
  if (!n.importer.parameterOf(data) && indices.constant() && !indices.isFloat() && indices.count() == data.dim(axis) &&
      llvm::equal(indices.constant()->integers(), llvm::seq(data.dim(axis)))) {
    Shape shape(data.shape().take_front(axis));
    llvm::append_range(shape, indices.shape());
    llvm::append_range(shape, data.shape().drop_front(axis + 1));
    return n.set(0, n.emit.reshape(data, shape));
  }
  if (axis == 0 && n.importer.parameterOf(data)) stateIds(indices, data.dim(0));
  if (axis == 0 && data.rank() == 2 && data.isFloat()) return n.set(0, embedding(n, data, indices));
  return n.set(0, n.emit.gather(data, indices, axis));
}

// Indices as i64 and counted from the start.
Tensor positive(Emitter& e, const Tensor& indices, int64_t size) {
  Tensor wide = e.cast(indices, e.ops().getI64Type());
  if (!wide) return {};
  Tensor negative = e.compare(Predicate::lt, wide, e.splatLike(wide, 0));
  return e.select(negative, e.scalar<train::AddOp>(wide, double(size)), wide);
}

// x[arange(n), i, ..] with known indices i that are the same for all rows: i is looked up within each row, so that rows
// of the batch stay apart. Nothing if the columns of indices are of another kind.
std::optional<Tensor> gatherInRows(Emitter& e, const Tensor& data, ArrayRef<Tensor> columns) {
  constexpr int64_t kMost = 1 << 22;
  const int64_t n = data.dim(0), count = columns[0].count();
  if (n == 0 || count == 0 || count > kMost) return std::nullopt;
  // The position in the other indexed dimensions as one.
  std::vector<int64_t> first, position(count, 0);
  int64_t size = 1;
  for (auto [k, column] : llvm::enumerate(columns)) {
    if (!column.constant()) return std::nullopt;
    std::vector<int64_t> indices = column.constant()->integers();
    for (auto [p, i] : llvm::enumerate(indices)) {
      if (i < 0) i += data.dim(k);
      if (i < 0 || i >= data.dim(k)) return std::nullopt;
      if (k) position[p] = position[p] * data.dim(k) + i;
    }
    if (k) size *= data.dim(k);
    if (k == 0) first = std::move(indices);
  }
  Shape shape(columns[0].shape());
  for (int64_t d = 0, inner = count; d < int64_t(shape.size()); ++d) {
    inner /= shape[d];
    auto row = [&](int64_t p) { return p / inner % n; };
    auto inRow = [&](int64_t p) { return first[p] == row(p) && position[p] == position[p - row(p) * inner]; };
    if (shape[d] != n || !llvm::all_of(llvm::seq(count), inRow)) continue;
    std::vector<int64_t> within;
    for (int64_t p = 0; p < count; ++p)
      if (row(p) == 0) within.push_back(position[p]);
    const bool whole = int64_t(within.size()) == size && llvm::equal(within, llvm::seq(size));
    Shape rows{n, size}, picked{n}, permutation;
    for (int64_t j = 0; j < int64_t(shape.size()); ++j)
      if (j != d) picked.push_back(shape[j]);
    for (int64_t trailing : data.shape().drop_front(columns.size())) {
      rows.push_back(trailing);
      picked.push_back(trailing);
    }
    for (int64_t j = 0; j < int64_t(picked.size()); ++j) permutation.push_back(j < d ? j + 1 : j == d ? 0 : j);
    auto type = RankedTensorType::get({int64_t(within.size())}, e.ops().getI64Type());
    Tensor indices = *Constant::fromAttribute(DenseElementsAttr::get(type, ArrayRef<int64_t>(within)));
    Tensor result = e.reshape(data, rows);
    if (!whole) result = e.gather(result, indices, 1);
    return e.transpose(e.reshape(result, picked), permutation);
  }
  return std::nullopt;
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
  SmallVector<Tensor> columns;
  for (int64_t k = 0; k < tuple; ++k)
    columns.push_back(e.reshape(e.sliceAlong(indices, indices.rank() - 1, k, 1), places));
  if (!columns.back()) return failure();
  if (batch == 0)
    if (auto result = gatherInRows(e, data, columns)) return n.set(0, *result);
  // The indexed dimensions as one, indexed by the position in it; those of the batch by the row itself.
  Shape rows{1};
  llvm::append_range(rows, data.shape().drop_front(batch + tuple));
  Tensor position;
  for (int64_t d = 0; d < batch + tuple; ++d) {
    rows[0] *= data.dim(d);
    Tensor index = d < batch ? e.iota(e.ops().getI64Type(), places, d) : columns[d - batch];
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
  // The part of the data that is as large as the indices.
  Shape part(indices.shape()), steps(data.rank(), 1);
  part[axis] = data.dim(axis);
  return n.set(0, e.gatherElements(e.slice(data, Shape(data.rank(), 0), part, steps), indices, axis));
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
  if (!axes) return failure();
  if (axes->size() != 1) return n.error() << "takes one axis";
  int64_t axis = axes->front();
  if (!n.emit.checkAxis(axis, n.input(0).rank())) return failure();
  return n.set(0, n.emit.cumsum(n.input(0), axis, n.integer("exclusive", 0), n.integer("reverse", 0)));
}

constexpr Operator kOperators[] = {
    {"Gather", 1, 0, 2, gather, {.sample = "f[4,3], i[2]"}},
    {"GatherND", 11, 0, 2, gatherNd, {.sample = "f[4,3], i[2,1]"}},
    {"GatherElements", 11, 0, 2, gatherElements, {.sample = "f[4,3], i[2,3]"}},
    {"OneHot", 9, 0, 3, oneHot, {.sample = "i[3], 4, f[2]"}},
    {"CumSum", 11, 0, 2, cumsum, {.sample = "f[2,3], 1"}},
};

}  // namespace

ArrayRef<Operator> indexingOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
