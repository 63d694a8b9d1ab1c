// Reductions and softmax.
#include "frontend/onnx/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Kind = train::ReduceKind;
enum class Around { None, Abs, Square, Log, SquareRoot, LogSumExp };

LogicalResult reduce(Node& n, Kind kind, Around around) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  auto given = n.axes(1, x.rank());
  if (failed(given)) return failure();
  Shape axes = given->value_or(Shape());
  if (axes.empty()) {
    if (n.integer("noop_with_empty_axes", 0)) return n.set(0, x);
    for (int64_t d = 0; d < x.rank(); ++d) axes.push_back(d);
  }
  Shape shape;
  bool keep = n.integer("keepdims", 1), empty = false;
  for (int64_t d = 0; d < x.rank(); ++d) {
    bool reduced = llvm::is_contained(axes, d);
    empty |= reduced && x.dim(d) == 0;
    if (keep || !reduced) shape.push_back(reduced ? 1 : x.dim(d));
  }
  if (around != Around::None && !x.isFloat()) return n.error() << "takes floating-point numbers";
  if (empty && kind != Kind::sum) return n.error() << "reduces a dimension of size 0";
  if (empty && around != Around::Log && around != Around::LogSumExp)
    return n.set(0, e.splat(x.elementType(), shape, 0));
  Tensor largest;
  if (around == Around::Abs) x = e.unary<train::AbsOp>(x);
  if (around == Around::Square || around == Around::SquareRoot) x = e.binary<train::MulOp>(x, x);
  if (around == Around::LogSumExp) {
    largest = e.reduce(Kind::max, x, axes);
    x = e.unary<train::ExpOp>(e.binary<train::SubOp>(x, largest));
  }
  Tensor result = e.reduce(kind, x, axes);
  if (around == Around::Log || around == Around::LogSumExp) result = e.unary<train::LogOp>(result);
  if (around == Around::LogSumExp) result = e.binary<train::AddOp>(result, largest);
  if (around == Around::SquareRoot) result = e.unary<train::SqrtOp>(result);
  return n.set(0, e.reshape(result, shape));
}

template <Kind kind, Around around = Around::None>
LogicalResult reduction(Node& n) {
  return reduce(n, kind, around);
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
  if (axis < -x.rank() || axis > x.rank())
    return n.error() << "axis " << axis << " is out of range for rank " << x.rank();
  if (axis < 0) axis += x.rank();
  int64_t rows = 1, columns = 1;
  for (int64_t d = 0; d < x.rank(); ++d) (d < axis ? rows : columns) *= x.dim(d);
  Shape shape(x.shape());
  return n.set(0, n.emit.reshape(n.emit.softmax(n.emit.reshape(x, {rows, columns}), 1, logarithm), shape));
}

LogicalResult globalAveragePool(Node& n) {
  Shape axes;
  for (int64_t d = 2; d < n.input(0).rank(); ++d) axes.push_back(d);
  return n.set(0, n.emit.reduce(Kind::mean, n.input(0), axes));
}

LogicalResult globalMaxPool(Node& n) {
  Shape axes;
  for (int64_t d = 2; d < n.input(0).rank(); ++d) axes.push_back(d);
  return n.set(0, n.emit.reduce(Kind::max, n.input(0), axes));
}

constexpr Operator kOperators[] = {
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
    {"GlobalAveragePool", 1, 0, 1, globalAveragePool},
    {"GlobalMaxPool", 1, 0, 1, globalMaxPool},
};

}  // namespace

ArrayRef<Operator> reductionOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
