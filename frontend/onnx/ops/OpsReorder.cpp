// Operators that pick or replace elements by positions in each row, or by what a known tensor holds.
#include <numeric>

#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;

// Dimensions a and b first, then the others.
Shape inFront(int64_t rank, int64_t a, int64_t b) {
  Shape permutation{a, b};
  for (int64_t d = 0; d < rank; ++d)
    if (d != a && d != b) permutation.push_back(d);
  return permutation;
}

Shape inverse(ArrayRef<int64_t> permutation) {
  Shape result(permutation.size());
  for (auto [i, p] : llvm::enumerate(permutation)) result[p] = i;
  return result;
}

// One integer for each row, as [B, 1] of i64; absent after an error.
Tensor perRow(Node& n, const Tensor& v, int64_t rows) {
  if (v.rank() != 1 || v.dim(0) != rows || v.isFloat() || v.isBool())
    return n.error() << "takes one integer for each row of the batch", Tensor();
  return n.emit.reshape(n.emit.cast(v, n.emit.ops().getI64Type()), {rows, 1});
}

LogicalResult reverseSequence(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  const int64_t batch = n.integer("batch_axis", 1), time = n.integer("time_axis", 0);
  if (x.rank() < 2 || batch + time != 1 || batch * time != 0)
    return n.error() << "batch_axis and time_axis are 0 and 1, or 1 and 0";
  Tensor lengths = perRow(n, n.input(1), x.dim(batch));
  if (!lengths) return failure();
  const Shape permutation = inFront(x.rank(), batch, time);
  Tensor at = e.iota(e.ops().getI64Type(), {x.dim(batch), x.dim(time)}, 1);
  Tensor mirrored = e.scalar<train::SubOp>(e.binary<train::SubOp>(lengths, at), 1);
  Tensor positions = e.select(e.compare(Predicate::lt, at, lengths), mirrored, at);
  return n.set(0, e.transpose(e.gatherWithin(e.transpose(x, permutation), positions), inverse(permutation)));
}

LogicalResult tensorScatter(Node& n) {
  Emitter& e = n.emit;
  Tensor past = n.input(0), update = n.input(1);
  int64_t axis = n.integer("axis", -2);
  if (!e.checkAxis(axis, past.rank())) return failure();
  StringRef mode = n.string("mode", "linear");
  if (mode != "linear" && mode != "circular") return n.error() << "the mode '" << mode << "' is not known";
  bool fits = axis > 0 && update.rank() == past.rank() && update.elementType() == past.elementType();
  for (int64_t d = 0; fits && d < past.rank(); ++d)
    fits = d == axis ? update.dim(d) <= past.dim(d) : update.dim(d) == past.dim(d);
  if (!fits || past.count() == 0 || update.count() == 0)
    return n.error() << "the update must have the cache's shape but along the axis, which is not the first";
  const int64_t rows = past.dim(0), size = past.dim(axis), length = update.dim(axis);
  Type i64 = e.ops().getI64Type();
  Tensor start = n.input(2) ? perRow(n, n.input(2), rows) : e.splat(i64, {rows, 1}, 0);
  if (!start) return failure();
  const Shape permutation = inFront(past.rank(), 0, axis);
  // Where in the update each element of the cache is.
  Tensor from = e.binary<train::SubOp>(e.iota(i64, {rows, size}, 1), start);
  if (mode == "circular") from = e.mod(from, e.splat(i64, {}, double(size)), false);
  Tensor zero = e.splatLike(from, 0), last = e.splatLike(from, double(length - 1));
  Tensor written = e.binary<train::AndOp>(e.compare(Predicate::ge, from, zero), e.compare(Predicate::le, from, last));
  Tensor positions = e.binary<train::MinOp>(e.binary<train::MaxOp>(from, zero), last);
  Tensor taken = e.gatherWithin(e.transpose(update, permutation), positions);
  Tensor cache = e.transpose(past, permutation);
  if (!taken || !cache || !written) return failure();
  Shape aligned(past.rank(), 1);
  aligned[0] = rows, aligned[1] = size;
  return n.set(0, e.transpose(e.select(e.reshape(written, aligned), taken, cache), inverse(permutation)));
}

// The elements of a tensor that decides how large results are.
std::optional<train::Tensor> knownElements(Node& n, int64_t i) {
  Tensor x = n.input(i);
  if (x.constant() && x.count() <= (1 << 22)) {
    if (failed(n.importer.countElements(x.count()))) return std::nullopt;
    return x.constant()->elements();
  }
  n.error() << "how large its results are depends on data or on a weight; only tensors known when the graph is "
               "compiled are supported here";
  return std::nullopt;
}

bool isZero(const train::Tensor& x, int64_t i) {
  return x.isFloat() ? x.f[i] == 0 : x.i[i] == 0;
}

LogicalResult nonZero(Node& n) {
  auto x = knownElements(n, 0);
  if (!x) return failure();
  ArrayRef<int64_t> shape = x->type.getShape();
  std::vector<int64_t> found;
  for (int64_t i = 0; i < x->size(); ++i)
    if (!isZero(*x, i)) found.push_back(i);
  std::vector<int64_t> positions(shape.size() * found.size());
  for (size_t k = 0; k < found.size(); ++k) {
    int64_t rest = found[k];
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) positions[d * found.size() + k] = rest % shape[d];
  }
  return n.set(0, n.emit.reshape(n.emit.integers(positions), {int64_t(shape.size()), int64_t(found.size())}));
}

LogicalResult compress(Node& n) {
  Tensor x = n.input(0);
  auto condition = knownElements(n, 1);
  if (!condition) return failure();
  int64_t axis = n.integer("axis", 0);
  if (!n.has("axis")) x = n.emit.reshape(x, {x.count()});
  if (!x || !n.emit.checkAxis(axis, x.rank())) return failure();
  if (condition->size() > x.dim(axis)) return n.error() << "the condition is longer than the axis";
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < condition->size(); ++i)
    if (!isZero(*condition, i)) kept.push_back(i);
  return n.set(0, n.emit.gather(x, n.emit.integers(kept), axis));
}

// Distinct slices along an axis, or elements: in order, or as they first occur.
LogicalResult unique(Node& n) {
  Tensor x = n.input(0);
  auto elements = knownElements(n, 0);
  if (!elements) return failure();
  int64_t axis = n.integer("axis", 0);
  Tensor operand = n.has("axis") ? x : n.emit.reshape(x, {x.count()});
  if (!n.emit.checkAxis(axis, operand.rank())) return failure();
  const int64_t size = operand.dim(axis);
  int64_t inner = 1;
  for (int64_t d = axis + 1; d < operand.rank(); ++d) inner *= operand.dim(d);
  const int64_t outer = operand.count() == 0 ? 0 : operand.count() / (size * inner);
  auto compare = [&](int64_t a, int64_t b) {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t p = (o * size + a) * inner + i, q = (o * size + b) * inner + i;
        if (elements->isFloat() ? elements->f[p] != elements->f[q] : elements->i[p] != elements->i[q])
          return elements->isFloat() ? (elements->f[p] < elements->f[q] ? -1 : 1)
                                     : (elements->i[p] < elements->i[q] ? -1 : 1);
      }
    return 0;
  };
  std::vector<int64_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return compare(a, b) < 0; });
  // The first occurrence of each distinct slice, how often it occurs, and which each slice is.
  std::vector<int64_t> firsts, counts, which(size);
  for (int64_t k = 0; k < size; ++k) {
    if (k == 0 || compare(order[k - 1], order[k]) != 0) firsts.push_back(order[k]), counts.push_back(0);
    ++counts.back();
    which[order[k]] = int64_t(firsts.size()) - 1;
  }
  if (!n.integer("sorted", 1)) {
    std::vector<int64_t> rank(firsts.size()), place(firsts.size());
    std::iota(rank.begin(), rank.end(), 0);
    llvm::sort(rank, [&](int64_t a, int64_t b) { return firsts[a] < firsts[b]; });
    std::vector<int64_t> oldFirsts = firsts, oldCounts = counts;
    for (size_t k = 0; k < rank.size(); ++k)
      place[rank[k]] = k, firsts[k] = oldFirsts[rank[k]], counts[k] = oldCounts[rank[k]];
    for (int64_t& w : which) w = place[w];
  }
  if (failed(n.set(0, n.emit.gather(operand, n.emit.integers(firsts), axis)))) return failure();
  if (failed(n.set(1, n.emit.integers(firsts))) || failed(n.set(2, n.emit.integers(which)))) return failure();
  return n.set(3, n.emit.integers(counts));
}

constexpr Operator kOperators[] = {
    {"ReverseSequence", 10, 0, 2, reverseSequence, {.sample = "f[4,2], i[2]"}},
    {"TensorScatter", 24, 0, 2, tensorScatter, {.sample = "f[2,5,3], f[2,2,3]"}},
    {"NonZero", 9, 0, 1, nonZero, {.sample = "{1,0,2}", .limits = "operand known when the graph is compiled"}},
    {"Compress",
     9,
     0,
     2,
     compress,
     {.sample = "f[3,2], b{1,0,1}; axis=0", .limits = "condition known when the graph is compiled"}},
    {"Unique", 11, 0, 1, unique, {.sample = "{2,1,2}", .limits = "operand known when the graph is compiled"}},
};

}  // namespace

ArrayRef<Operator> reorderOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
