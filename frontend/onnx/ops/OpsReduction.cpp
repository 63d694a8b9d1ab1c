// Reductions and softmax.
#include <cmath>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Limits.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Kind = train::ReduceKind;
enum class Around { None, Abs, Square, Log, SquareRoot, LogSumExp };

// PyTorch's max(dim) gives the gradient to the first of equal elements, amax and max() share it. Without the exporter's
// metadata, max(dim) shows by an ArgMax of the same operand and axis, which is the indices that it returns.
bool takesFirst(const Node& n, Kind kind, ArrayRef<int64_t> axes, int64_t rank) {
  if ((kind != Kind::max && kind != Kind::min) || axes.size() != 1) return false;
  StringRef call = n.torchExpression();
  if (!call.empty()) return call.contains("aten.max.dim]") || call.contains("aten.min.dim]");
  const StringRef other = kind == Kind::max ? "ArgMax" : "ArgMin";
  return llvm::any_of(n.importer.model.graph().node(), [&](const onnx::NodeProto& node) {
    if (node.op_type() != other || node.input_size() != 1 || node.input(0) != n.proto.input(0)) return false;
    int64_t axis = 0;
    for (const onnx::AttributeProto& attribute : node.attribute())
      if (attribute.name() == "axis") axis = attribute.i();
    return (axis < 0 ? axis + rank : axis) == axes.front();
  });
}

// A reduction over no axes keeps its other steps. The norm of one element is its absolute value.
Tensor reduceOverNoAxes(Emitter& e, const Tensor& x, Around around) {
  switch (around) {
    case Around::Abs:
    case Around::SquareRoot:
      return e.unary<train::AbsOp>(x);
    case Around::Square:
      return e.binary<train::MulOp>(x, x);
    case Around::Log:
      return e.unary<train::LogOp>(x);
    case Around::None:
    case Around::LogSumExp:
      return x;
  }
  return {};
}

LogicalResult reduce(Node& n, Kind kind, Around around) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  auto given = n.axes(1, x.rank());
  if (failed(given)) return failure();
  Shape axes = given->value_or(Shape());
  if (around != Around::None && !x.isFloat()) return n.error() << "takes floating-point numbers";
  if (axes.empty()) {
    if (n.integer("noop_with_empty_axes", 0)) return n.set(0, reduceOverNoAxes(e, x, around));
    for (int64_t d = 0; d < x.rank(); ++d) axes.push_back(d);
  }
  Shape shape;
  bool keep = n.integer("keepdims", 1), empty = false;
  for (int64_t d = 0; d < x.rank(); ++d) {
    bool reduced = llvm::is_contained(axes, d);
    empty |= reduced && x.dim(d) == 0;
    if (keep || !reduced) shape.push_back(reduced ? 1 : x.dim(d));
  }
  // The largest of booleans is any of them, the smallest all of them.
  const bool booleans = x.isBool() && (kind == Kind::max || kind == Kind::min);
  if (booleans) x = e.cast(x, e.ops().getI32Type());
  // Of no elements, the result is what changes nothing: 0 of sums, 1 of products, and the end of a type's range.
  if (empty) {
    double limit = INFINITY;
    if (auto type = dyn_cast<IntegerType>(x.elementType()))
      limit = std::ldexp(1, int(type.getWidth()) - (type.isUnsigned() ? 0 : 1)) - (kind == Kind::min ? 1 : 0);
    const bool logarithm = around == Around::Log || around == Around::LogSumExp;
    double none = logarithm            ? -INFINITY
                  : kind == Kind::prod ? 1
                  : kind == Kind::mean ? NAN
                  : kind == Kind::max  ? -limit
                  : kind == Kind::min  ? limit
                                       : 0;
    if (booleans) none = kind == Kind::min;
    return n.set(0, e.splat(booleans ? Type(e.ops().getI1Type()) : x.elementType(), shape, none));
  }
  Tensor largest;
  if (around == Around::Abs) x = e.unary<train::AbsOp>(x);
  if (around == Around::Square || around == Around::SquareRoot) x = e.binary<train::MulOp>(x, x);
  if (around == Around::LogSumExp) {
    largest = e.reduce(Kind::max, x, axes);
    // An infinite maximum is not subtracted: the result is infinite, not NaN. Then exp of all smaller elements is set
    // to 0: else exp of a large one overflows and its gradient is NaN.
    Tensor isFinite =
        e.compare(train::ComparePredicate::lt, e.unary<train::AbsOp>(largest), e.splatLike(largest, INFINITY));
    Tensor bound = e.select(isFinite, e.splatLike(largest, -INFINITY), largest);
    largest = e.select(isFinite, largest, e.splatLike(largest, 0));
    Tensor vanishes = e.compare(train::ComparePredicate::lt, x, bound), shifted = e.binary<train::SubOp>(x, largest);
    x = e.unary<train::ExpOp>(e.select(vanishes, e.splatLike(shifted, -INFINITY), shifted));
  }
  // The maximum that logcumsumexp subtracts has no effect, and so no gradient; log(0) of a row that begins with
  // -infinity would give it one.
  const bool shift = kind == Kind::max && n.torchExpression().contains("aten.logcumsumexp");
  if (shift && !n.importer.evaluates()) x = e.stopGradient(x);
  Tensor result = e.reduce(kind, x, axes, takesFirst(n, kind, axes, x.rank()));
  if (around == Around::Log || around == Around::LogSumExp) result = e.unary<train::LogOp>(result);
  if (around == Around::LogSumExp) result = e.binary<train::AddOp>(result, largest);
  if (around == Around::SquareRoot) result = e.unary<train::SqrtOp>(result);
  if (booleans) result = e.cast(result, e.ops().getI1Type());
  return n.set(0, e.reshape(result, shape));
}

template <Kind kind, Around around = Around::None>
LogicalResult reduction(Node& n) {
  return reduce(n, kind, around);
}

// Of the first input all dimensions before `axis` as one, and all from it on.
std::optional<Shape> rowsFrom(Node& n, int64_t axis) {
  Tensor x = n.input(0);
  if (!n.emit.checkAxis(axis, x.rank())) return std::nullopt;
  Shape shape{1, 1};
  for (int64_t d = 0; d < x.rank(); ++d) shape[d >= axis] *= x.dim(d);
  return shape;
}

template <bool logarithm>
LogicalResult softmax(Node& n) {
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", n.opset < 13 ? 1 : -1);
  if (n.opset >= 13) {
    if (!n.emit.checkAxis(axis, x.rank())) return failure();
    return n.set(0, n.emit.softmax(x, axis, logarithm));
  }
  // Before opset 13 all dimensions from the axis on are one.
  auto rows = rowsFrom(n, axis);
  if (!rows) return failure();
  return n.set(0, n.emit.reshape(n.emit.softmax(n.emit.reshape(x, *rows), 1, logarithm), x.shape()));
}

LogicalResult globalAveragePool(Node& n) {
  Shape axes;
  for (int64_t d = 2; d < n.input(0).rank(); ++d) axes.push_back(d);
  return n.set(0, n.emit.reduce(Kind::mean, n.input(0), axes));
}

// As in other poolings the first maximum has the gradient.
LogicalResult globalMaxPool(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  if (x.rank() < 3) return n.set(0, x);
  Shape shape(x.rank(), 1);
  shape[0] = x.dim(0), shape[1] = x.dim(1);
  if (x.count() == 0) return n.set(0, e.splat(x.elementType(), shape, -INFINITY));
  Tensor planes = e.reshape(x, {x.dim(0), x.dim(1), x.count() / (x.dim(0) * x.dim(1))});
  return n.set(0, e.reshape(e.reduce(Kind::max, planes, {2}, /*first=*/true), shape));
}

// 1 at the first maximum, else 0. A NaN is greater than any number.
LogicalResult hardmax(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", n.opset < 13 ? 1 : -1);
  Shape shape(x.shape());
  if (n.opset < 13) {
    auto rows = rowsFrom(n, axis);
    if (!rows) return failure();
    x = e.reshape(x, *rows);
    axis = 1;
  }
  if (!x || !x.isFloat()) return n.error() << "takes floating-point numbers";
  if (!e.checkAxis(axis, x.rank())) return failure();
  if (x.count() == 0) return n.set(0, n.input(0));
  Tensor isLargest = e.binary<train::OrOp>(e.compare(train::ComparePredicate::eq, x, e.reduce(Kind::max, x, {axis})),
                                           e.compare(train::ComparePredicate::ne, x, x));
  Tensor position = e.iota(e.ops().getI64Type(), x.shape(), axis);
  Tensor first = e.select(isLargest, position, e.splatLike(position, double(x.dim(axis))));
  Tensor hot = e.compare(train::ComparePredicate::eq, position, e.reduce(Kind::min, first, {axis}));
  return n.set(0, e.reshape(e.cast(hot, x.elementType()), shape));
}

Tensor norm(Emitter& e, const Tensor& x, int64_t p, ArrayRef<int64_t> axes) {
  return rootOfPowers(e, e.reduce(Kind::sum, absolutePower(e, x, p), axes), p);
}

LogicalResult lpNormalization(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", -1), p = n.integer("p", 2);
  if (!x.isFloat()) return n.error() << "takes floating-point numbers";
  if (p != 1 && p != 2) return n.error() << "p is " << p << "; it takes 1 or 2";
  if (!e.checkAxis(axis, x.rank())) return failure();
  Tensor length = norm(e, x, p, {axis});
  if (!length) return failure();
  Tensor isZero = e.compare(train::ComparePredicate::eq, length, e.splatLike(length, 0));
  return n.set(0, e.binary<train::DivOp>(x, e.select(isZero, e.splatLike(length, 1), length)));
}

LogicalResult globalLpPool(Node& n) {
  int64_t p = n.integer("p", 2);
  if (!n.input(0).isFloat() || p < 1) return n.error() << "takes floating-point numbers and p of at least 1";
  Shape axes;
  for (int64_t d = 2; d < n.input(0).rank(); ++d) axes.push_back(d);
  return n.set(0, norm(n.emit, n.input(0), p, axes));
}

LogicalResult meanVarianceNormalization(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  auto given = n.axes(1, x.rank());
  if (failed(given)) return failure();
  Shape axes = given->value_or(Shape{0, 2, 3});
  for (int64_t& axis : axes)
    if (!e.checkAxis(axis, x.rank())) return failure();
  if (!x.isFloat()) return n.error() << "takes floating-point numbers";
  // 1e-9 is 0 in f16.
  const Type element = x.elementType();
  x = e.atLeastF32(x);
  Tensor centered = e.binary<train::SubOp>(x, e.reduce(Kind::mean, x, axes));
  Tensor deviation = e.unary<train::SqrtOp>(e.reduce(Kind::mean, e.binary<train::MulOp>(centered, centered), axes));
  Tensor result = e.binary<train::DivOp>(centered, e.scalar<train::AddOp>(deviation, 1e-9));
  return n.set(0, e.cast(result, element));
}

// x / (bias + alpha / size * the sum of squares of neighbouring channels) ^ beta
LogicalResult localResponseNormalization(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  const int64_t size = n.integer("size", 0), before = (size - 1) / 2, after = size - 1 - before;
  if (!x.isFloat() || x.rank() < 3 || size < 1 || size > (1 << 16))
    return n.error() << "takes floating-point numbers [N, C, ...] and a size of at least 1";
  // The sum over channels as a product with a matrix of ones near the diagonal.
  const int64_t channels = x.dim(1);
  if (channels > kMaxTable || channels * channels > kMaxTable || x.count() == 0)
    return n.error() << "the number of channels is out of range";
  std::vector<double> near(channels * channels);
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t k = std::max<int64_t>(c - before, 0); k <= std::min(c + after, channels - 1); ++k)
      near[c * channels + k] = 1;
  Tensor squares = e.reshape(e.binary<train::MulOp>(x, x), {x.dim(0), channels, x.count() / (x.dim(0) * channels)});
  Tensor sums = e.reshape(e.matmul(e.floats(x.elementType(), {channels, channels}, near), squares), x.shape());
  Tensor base =
      e.scalar<train::AddOp>(e.scalar<train::MulOp>(sums, n.number("alpha", 1e-4) / double(size)), n.number("bias", 1));
  return n.set(0, e.binary<train::MulOp>(x, e.scalar<train::PowOp>(base, -n.number("beta", 0.75))));
}

constexpr Operator kOperators[] = {
    {"Hardmax", 1, 0, 1, hardmax},
    {"LpNormalization", 1, 0, 1, lpNormalization},
    {"GlobalLpPool", 2, 0, 1, globalLpPool, {.sample = "f[1,2,3,3]"}},
    {"MeanVarianceNormalization", 9, 0, 1, meanVarianceNormalization, {.sample = "f[2,3,2,2]"}},
    {"LRN", 1, 0, 1, localResponseNormalization, {.sample = "f[1,4,3,3]; size=3"}},
    {"ReduceSum", 1, 0, 1, reduction<Kind::sum>},
    {"ReduceMean", 1, 0, 1, reduction<Kind::mean>},
    {"ReduceMax", 1, 0, 1, reduction<Kind::max>},
    {"ReduceMin", 1, 0, 1, reduction<Kind::min>},
    {"ReduceProd", 1, 0, 1, reduction<Kind::prod>},
    {"ReduceL1", 1, 0, 1, reduction<Kind::sum, Around::Abs>},
    {"ReduceL2", 1, 0, 1, reduction<Kind::sum, Around::SquareRoot>},
    {"ReduceSumSquare", 1, 0, 1, reduction<Kind::sum, Around::Square>},
    {"ReduceLogSum", 1, 0, 1, reduction<Kind::sum, Around::Log>},
    {"ReduceLogSumExp", 1, 0, 1, reduction<Kind::sum, Around::LogSumExp>},
    {"Softmax", 1, 0, 1, softmax<false>},
    {"LogSoftmax", 1, 0, 1, softmax<true>},
    {"GlobalAveragePool", 1, 0, 1, globalAveragePool, {.sample = "f[1,2,3,3]"}},
    {"GlobalMaxPool", 1, 0, 1, globalMaxPool, {.sample = "f[1,2,3,3]"}},
};

}  // namespace

Tensor absolutePower(Emitter& e, const Tensor& x, int64_t p) {
  if (p == 2) return e.binary<train::MulOp>(x, x);
  Tensor magnitude = e.unary<train::AbsOp>(x);
  return p == 1 ? magnitude : e.scalar<train::PowOp>(magnitude, double(p));
}

Tensor rootOfPowers(Emitter& e, const Tensor& sum, int64_t p) {
  if (!sum || p == 1) return sum;
  Tensor zero = e.splatLike(sum, 0), isZero = e.compare(train::ComparePredicate::eq, sum, zero);
  Tensor safe = e.select(isZero, e.splatLike(sum, 1), sum);
  Tensor root = p == 2 ? e.unary<train::SqrtOp>(safe) : e.scalar<train::PowOp>(safe, 1 / double(p));
  return e.select(isZero, zero, root);
}

ArrayRef<Operator> reductionOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
