// Shape ops, reductions and running sums.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/Train/EvaluatorDetail.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace sheaf::train;
using namespace sheaf::train::evaluator;

namespace {

ArrayRef<int64_t> shapeOf(const Tensor& t) {
  return t.type.getShape();
}

// result[index] = operand[base + index . strides]: transpose, broadcast, slice, reverse.
LogicalResult read(const Tensor& in, Tensor& out, ArrayRef<int64_t> strides, int64_t base) {
  withElements(in, out, [&](const auto& from, auto& to) {
    forEach(shapeOf(out), strides, base, [&](int64_t index, int64_t offset) { to[index] = from[offset]; });
  });
  return success();
}

// result[base + index . strides] = operand[index]: pad, concat.
LogicalResult write(const Tensor& in, Tensor& out, ArrayRef<int64_t> strides, int64_t base) {
  withElements(in, out, [&](const auto& from, auto& to) {
    forEach(shapeOf(in), strides, base, [&](int64_t index, int64_t offset) { to[offset] = from[index]; });
  });
  return success();
}

LogicalResult copy(const Tensor& in, Tensor& out) {
  out.f = in.f;
  out.i = in.i;
  return success();
}

LogicalResult broadcast(const Tensor& in, Tensor& out) {
  SmallVector<int64_t> strides = stridesOf(shapeOf(in));
  for (size_t d = 0; d < strides.size(); ++d)
    if (shapeOf(in)[d] == 1) strides[d] = 0;
  return read(in, out, strides, 0);
}

LogicalResult transpose(TransposeOp op, const Tensor& in, Tensor& out) {
  SmallVector<int64_t> from = stridesOf(shapeOf(in)), strides;
  for (int64_t p : op.getPermutation()) strides.push_back(from[p]);
  return read(in, out, strides, 0);
}

LogicalResult slice(SliceOp op, const Tensor& in, Tensor& out) {
  SmallVector<int64_t> strides = stridesOf(shapeOf(in));
  int64_t base = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    base += op.getStarts()[d] * strides[d];
    strides[d] *= op.getSteps()[d];
  }
  return read(in, out, strides, base);
}

LogicalResult reverse(ReverseOp op, const Tensor& in, Tensor& out) {
  SmallVector<int64_t> strides = stridesOf(shapeOf(in));
  int64_t base = 0;
  for (int64_t axis : op.getAxes()) {
    if (axis < 0 || axis >= int64_t(strides.size())) return op.emitOpError("axis out of range");
    base += (shapeOf(in)[axis] - 1) * strides[axis];
    strides[axis] = -strides[axis];
  }
  return read(in, out, strides, base);
}

LogicalResult pad(PadOp op, const Tensor& in, Tensor& out) {
  SmallVector<int64_t> strides = stridesOf(shapeOf(out));
  int64_t base = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    base += op.getLow()[d] * strides[d];
    strides[d] *= op.getInterior()[d] + 1;
  }
  return write(in, out, strides, base);
}

LogicalResult concat(ConcatOp op, Operands in, Tensor& out) {
  SmallVector<int64_t> strides = stridesOf(shapeOf(out));
  int64_t position = 0;
  for (const Tensor* t : in) {
    (void)write(*t, out, strides, position * strides[op.getAxis()]);
    position += shapeOf(*t)[op.getAxis()];
  }
  return success();
}

LogicalResult iota(IotaOp op, Tensor& out) {
  int64_t axis = op.getAxis();
  if (axis < 0 || axis >= out.type.getRank()) return op.emitOpError("axis out of range");
  SmallVector<int64_t> strides(out.type.getRank(), 0);
  strides[axis] = 1;
  forEach(shapeOf(out), strides, 0, [&](int64_t index, int64_t position) {
    if (out.isFloat())
      out.f[index] = double(position);
    else
      out.i[index] = position;
  });
  return success();
}

template <typename T>
T lowest() {
  return std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}
template <typename T>
T highest() {
  return std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}
bool isNan(double x) {
  return std::isnan(x);
}
bool isNan(int64_t) {
  return false;
}

// Integers wrap around, as the unsigned arithmetic that is defined to do so.
double plus(double x, double y) {
  return x + y;
}
int64_t plus(int64_t x, int64_t y) {
  return int64_t(uint64_t(x) + uint64_t(y));
}
double times(double x, double y) {
  return x * y;
}
int64_t times(int64_t x, int64_t y) {
  return int64_t(uint64_t(x) * uint64_t(y));
}

LogicalResult reduce(ReduceOp op, const Tensor& in, Tensor& out) {
  // Strides of the result, zero along what is reduced.
  const int64_t leaves = op.getLeaves(), leafIn = int64_t(in.size()) / leaves, leafOut = int64_t(out.size()) / leaves;
  SmallVector<int64_t> strides = stridesOf(shapeOf(out).drop_front(leaves > 1 ? 1 : 0));
  for (int64_t axis : op.getAxes()) strides[axis] = 0;
  ReduceKind kind = op.getKind();
  if (kind == ReduceKind::mean && in.size() == 0) return op.emitOpError("takes the mean of no elements");
  withElements(in, out, [&](const auto& from, auto& to) {
    using T = std::decay_t<decltype(to[0])>;
    T start = kind == ReduceKind::prod ? T(1) : kind == ReduceKind::max ? lowest<T>() : T(0);
    if (kind == ReduceKind::min) start = highest<T>();
    std::fill(to.begin(), to.end(), start);
    forEach(shapeOf(in), strides, 0, [&](int64_t index, int64_t offset) {
      T x = from[index];
      T& y = to[offset + index / std::max<int64_t>(leafIn, 1) * leafOut];
      switch (kind) {
        case ReduceKind::sum:
        case ReduceKind::mean:
          y = plus(y, x);
          break;
        case ReduceKind::prod:
          y = times(y, x);
          break;
        case ReduceKind::max:
          if (x > y || isNan(x)) y = x;
          break;
        case ReduceKind::min:
          if (x < y || isNan(x)) y = x;
          break;
      }
    });
    if (kind == ReduceKind::mean)
      for (T& y : to) y /= T(in.size() / out.size());
  });
  return success();
}

LogicalResult cumsum(CumSumOp op, const Tensor& in, Tensor& out) {
  int64_t rank = in.type.getRank(), axis = op.getAxis();
  if (axis < 0 || axis >= rank) return op.emitOpError("axis out of range");
  int64_t outer = extent(shapeOf(in), 0, axis), n = shapeOf(in)[axis], inner = extent(shapeOf(in), axis + 1, rank);
  withElements(in, out, [&](const auto& from, auto& to) {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t k = 0; k < inner; ++k) {
        std::decay_t<decltype(to[0])> sum = 0;
        for (int64_t j = 0; j < n; ++j) {
          int64_t index = (o * n + (op.getReverse() ? n - 1 - j : j)) * inner + k;
          if (op.getExclusive()) to[index] = sum;
          sum = plus(sum, from[index]);
          if (!op.getExclusive()) to[index] = sum;
        }
      }
  });
  return success();
}

}  // namespace

Outcome evaluator::evaluateShape(Operation* op, Operands in, Results out) {
  return llvm::TypeSwitch<Operation*, Outcome>(op)
      .Case<ReshapeOp>([&](auto) { return copy(*in[0], out[0]); })
      .Case<BroadcastOp>([&](auto) { return broadcast(*in[0], out[0]); })
      .Case<TransposeOp>([&](auto o) { return transpose(o, *in[0], out[0]); })
      .Case<SliceOp>([&](auto o) { return slice(o, *in[0], out[0]); })
      .Case<ReverseOp>([&](auto o) { return reverse(o, *in[0], out[0]); })
      .Case<PadOp>([&](auto o) { return pad(o, *in[0], out[0]); })
      .Case<ConcatOp>([&](auto o) { return concat(o, in, out[0]); })
      .Case<IotaOp>([&](auto o) { return iota(o, out[0]); })
      .Case<ReduceOp>([&](auto o) { return reduce(o, *in[0], out[0]); })
      .Case<CumSumOp>([&](auto o) { return cumsum(o, *in[0], out[0]); })
      .Default([](auto) { return std::nullopt; });
}
