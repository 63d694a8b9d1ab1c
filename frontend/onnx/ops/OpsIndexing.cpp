// Operators that select elements by index.
#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/importer/Labels.h"
#include "frontend/onnx/ops/Embedding.h"

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
  if (embeddingArgument(n, 3) == "True") warnOfFrequency(n.importer);
  int64_t padding = -1;
  if (embeddingArgument(n, 2).getAsInteger(10, padding)) return rows;
  return stopPaddingGradient(e, rows, indices, padding);
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

// True if a column of indices is known and counts the rows along dimension `d` of the indices.
bool countsRows(const Tensor& column, int64_t d, int64_t rows) {
  if (!column.constant() || column.dim(d) != rows) return false;
  Constant known = *column.constant();
  for (int64_t j = 0; j < column.rank(); ++j) {
    if (j == d) continue;
    if (!known.repeats(j, 1)) return false;
    known = known.first(j, 1);
  }
  const std::vector<int64_t> indices = known.integers();
  return llvm::all_of(llvm::seq(rows), [&](int64_t row) { return indices[row] == row || indices[row] == row - rows; });
}

// Columns of indices, of which known ones are in range, as positions in the dimensions of `sizes` as one. A tuple with
// an index out of range has a position out of range.
Tensor positionOf(Emitter& e, ArrayRef<Tensor> columns, ArrayRef<int64_t> sizes) {
  if (columns.size() == 1) return columns[0];
  Tensor position, wrong;
  for (auto [column, size] : llvm::zip(columns, sizes)) {
    Tensor index = positive(e, column, size);
    if (!index) return {};
    if (!column.constant()) {
      Tensor outside = e.binary<train::OrOp>(e.compare(Predicate::lt, index, e.splatLike(index, 0)),
                                             e.compare(Predicate::ge, index, e.splatLike(index, double(size))));
      wrong = wrong ? e.binary<train::OrOp>(wrong, outside) : outside;
    }
    position = position ? e.binary<train::AddOp>(e.scalar<train::MulOp>(position, double(size)), index) : index;
  }
  return wrong ? e.select(wrong, e.splatLike(position, double(*elementCount(sizes))), position) : position;
}

// The known positions within a row, counted from its start, where they are the same for all rows along dimension `d` of
// the indices.
std::optional<std::vector<int64_t>> positionsInRow(ArrayRef<Tensor> columns, ArrayRef<int64_t> sizes, int64_t d) {
  constexpr int64_t kMost = 1 << 22;
  std::vector<int64_t> within;
  for (auto [column, size] : llvm::zip(columns, sizes)) {
    if (!column.constant() || column.count() / column.dim(d) > kMost || !column.constant()->repeats(d, 1))
      return std::nullopt;
    const std::vector<int64_t> indices = column.constant()->first(d, 1).integers();
    within.resize(indices.size(), 0);
    for (auto [place, i] : llvm::zip(within, indices)) {
      if (i < 0 || i >= size) return std::nullopt;
      place = place * size + i;
    }
  }
  return within;
}

// x[arange(n), i, ..]: i is looked up within each row, so that rows of the batch stay apart. Nothing if the first
// column of indices is of another kind.
std::optional<Tensor> gatherInRows(Emitter& e, const Tensor& data, ArrayRef<Tensor> columns) {
  const int64_t n = data.dim(0);
  const Shape places(columns[0].shape());
  if (n == 0 || columns[0].count() == 0) return std::nullopt;
  auto dimensions = llvm::seq<int64_t>(0, places.size());
  auto found = llvm::find_if(dimensions, [&](int64_t d) { return countsRows(columns[0], d, n); });
  if (found == dimensions.end()) return std::nullopt;
  const int64_t d = *found;
  const ArrayRef<int64_t> sizes = data.shape().slice(1, columns.size() - 1);
  const int64_t size = *elementCount(sizes), count = columns[0].count() / n;
  Shape rows{n, size}, picked{n}, front{d}, back;
  for (int64_t j : dimensions)
    if (j != d) picked.push_back(places[j]), front.push_back(j);
  for (int64_t trailing : data.shape().drop_front(columns.size())) {
    rows.push_back(trailing);
    picked.push_back(trailing);
  }
  for (int64_t j = 0; j < int64_t(picked.size()); ++j) back.push_back(j < d ? j + 1 : j == d ? 0 : j);
  Tensor result = e.reshape(data, rows);
  SmallVector<Tensor> others(columns.drop_front());
  for (auto [column, extent] : llvm::zip(others, sizes))
    if (column.constant()) column = positive(e, column, extent);
  auto within = others.empty() ? std::vector<int64_t>(size_t(count), 0) : positionsInRow(others, sizes, d);
  if (!within) {
    result = e.gatherWithin(result, e.transpose(positionOf(e, others, sizes), front));
  } else if (int64_t(within->size()) != size || !llvm::equal(*within, llvm::seq(size))) {
    result = e.gather(result, e.integers(*within), 1);
  }
  return e.transpose(e.reshape(result, picked), back);
}

// The result where all elements of the data are equal and all indices are known: that element.
std::optional<Tensor> gatherEqual(const Tensor& data, ArrayRef<Tensor> columns, ArrayRef<int64_t> shape) {
  if (!data.constant() || !data.constant()->isSplat()) return std::nullopt;
  if (!llvm::all_of(columns, [](const Tensor& column) { return column.constant(); })) return std::nullopt;
  Constant result = *data.constant();
  result.type = RankedTensorType::get(shape, data.elementType());
  result.stored.assign(shape.size(), 1);
  return result;
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
  // Each column reads all of known indices.
  if (failed(n.importer.countElements(tuple * indices.storedCount()))) return failure();
  SmallVector<Tensor> columns;
  for (int64_t k = 0; k < tuple; ++k) {
    columns.push_back(e.reshape(e.sliceAlong(indices, indices.rank() - 1, k, 1), places));
    if (!columns.back() || !e.checkIndices(columns.back(), data.shape(), batch + k)) return failure();
  }
  if (auto result = gatherEqual(data, columns, shape)) return n.set(0, *result);
  if (auto result = batch == 0 ? gatherInRows(e, data, columns) : std::nullopt) return n.set(0, *result);
  // The indexed dimensions as one, indexed by the position in it.
  Tensor position = positionOf(e, columns, data.shape().slice(batch, tuple));
  Shape rows{*elementCount(data.shape().slice(batch, tuple))};
  llvm::append_range(rows, data.shape().drop_front(batch + tuple));
  if (batch == 0) return n.set(0, e.gather(e.reshape(data, rows), position, 0));
  // Within the entries of the dimensions that both share, which are one.
  const int64_t shared = *elementCount(ArrayRef<int64_t>(places).take_front(batch));
  rows.insert(rows.begin(), shared);
  Shape each{shared};
  llvm::append_range(each, ArrayRef<int64_t>(places).drop_front(batch));
  return n.set(0, e.reshape(e.gatherWithin(e.reshape(data, rows), e.reshape(position, each)), shape));
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
  if (!e.checkIndices(indices, data.shape(), axis)) return failure();
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
