// Matrix products, gather, scatter, selection, sums over partials and ranks.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/Train/EvaluatorDetail.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace sheaf::train;
using namespace sheaf::train::evaluator;

namespace {

template <typename Product>
LogicalResult matmul(Product op, const Tensor& a, const Tensor& b, Tensor& out) {
  ArrayRef<int64_t> shape = out.type.getShape();
  int64_t rank = shape.size(), batch = extent(shape, 0, rank - 2), m = shape[rank - 2], n = shape[rank - 1];
  int64_t k = a.type.getDimSize(op.getTransposeA() ? rank - 2 : rank - 1);
  int64_t aRow = op.getTransposeA() ? 1 : k, aColumn = op.getTransposeA() ? m : 1;
  int64_t bRow = op.getTransposeB() ? 1 : n, bColumn = op.getTransposeB() ? k : 1;
  for (int64_t g = 0; g < batch; ++g)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const double *row = a.f.data() + g * m * k + i * aRow, *column = b.f.data() + g * k * n + j * bColumn;
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += row[l * aColumn] * column[l * bRow];
        out.f[(g * m + i) * n + j] = sum;
      }
  return success();
}

LogicalResult matmulEpilogue(MatMulEpilogueOp op, Operands in, Results out) {
  if (failed(matmul(op, *in[0], *in[1], out[0]))) return failure();
  std::vector<double>& c = out[0].f;
  int64_t n = out[0].type.getDimSize(1);
  const MatMulEpilogue epilogue = op.getEpilogue();
  if (epilogue == MatMulEpilogue::bias || epilogue == MatMulEpilogue::bias_gelu)
    for (size_t e = 0; e < c.size(); ++e) c[e] += in[2]->f[e % n];
  if (epilogue == MatMulEpilogue::gelu || epilogue == MatMulEpilogue::bias_gelu) {
    out[1].f = c;
    for (double& x : c) x = gelu(x, true);
  }
  if (epilogue == MatMulEpilogue::gelu_grad)
    for (size_t e = 0; e < c.size(); ++e) c[e] *= geluSlope(in[2]->f[e], true);
  if (epilogue == MatMulEpilogue::sum_lhs || epilogue == MatMulEpilogue::sum_rhs) {
    const Tensor& summed = *in[epilogue == MatMulEpilogue::sum_rhs];
    for (size_t e = 0; e < summed.f.size(); ++e) out[1].f[e % out[1].f.size()] += summed.f[e];
  }
  return success();
}

// Calls f(index of the slice, position in the indexed dimension), or fails at an index out of range.
template <typename F>
LogicalResult forIndices(Operation* op, const Tensor& indices, int64_t size, F f) {
  for (size_t k = 0; k < indices.i.size(); ++k) {
    int64_t position = indices.i[k];
    if (position < -size || position >= size)
      return op->emitOpError() << "index " << position << " lies outside a dimension of " << size;
    f(int64_t(k), position < 0 ? position + size : position);
  }
  return success();
}

LogicalResult gather(GatherOp op, const Tensor& data, const Tensor& indices, Tensor& out) {
  ArrayRef<int64_t> shape = data.type.getShape();
  int64_t axis = op.getAxis(), n = shape[axis], count = indices.size();
  int64_t outer = extent(shape, 0, axis), inner = extent(shape, axis + 1, shape.size());
  return forIndices(op, indices, n, [&](int64_t k, int64_t position) {
    withElements(data, out, [&](const auto& from, auto& to) {
      for (int64_t o = 0; o < outer; ++o)
        for (int64_t j = 0; j < inner; ++j) to[(o * count + k) * inner + j] = from[(o * n + position) * inner + j];
    });
  });
}

LogicalResult scatterAdd(ScatterAddOp op, const Tensor& update, const Tensor& indices, Tensor& out) {
  ArrayRef<int64_t> shape = out.type.getShape();
  int64_t axis = op.getAxis();
  if (axis < 0 || axis >= int64_t(shape.size())) return op.emitOpError("axis out of range");
  int64_t n = shape[axis], count = indices.size();
  int64_t outer = extent(shape, 0, axis), inner = extent(shape, axis + 1, shape.size());
  if (update.size() != outer * count * inner) return op.emitOpError("update does not fit the indices and the result");
  return forIndices(op, indices, n, [&](int64_t k, int64_t position) {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t j = 0; j < inner; ++j)
        out.f[(o * n + position) * inner + j] += update.f[(o * count + k) * inner + j];
  });
}

// Calls f(outer entry, number along the axis, inner element, row) for all elements of a tensor that has `count`
// elements along the axis, and elsewhere the sizes of `shape`; `row` is what the index there names.
template <typename F>
LogicalResult forOwnIndices(Operation* op, const Tensor& indices, ArrayRef<int64_t> shape, int64_t axis, F f) {
  ArrayRef<int64_t> at = indices.type.getShape();
  const int64_t outer = extent(shape, 0, axis), inner = extent(shape, axis + 1, shape.size()), count = at[axis];
  const bool ownOuter = extent(at, 0, axis) > 1, ownInner = extent(at, axis + 1, at.size()) > 1;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t k = 0; k < count; ++k)
      for (int64_t j = 0; j < inner; ++j) {
        int64_t row = indices.i[((ownOuter ? o * count : 0) + k) * (ownInner ? inner : 1) + (ownInner ? j : 0)];
        if (row < -shape[axis] || row >= shape[axis])
          return op->emitOpError() << "index " << row << " lies outside a dimension of " << shape[axis];
        f(o, k, j, row < 0 ? row + shape[axis] : row);
      }
  return success();
}

LogicalResult gatherElements(GatherElementsOp op, const Tensor& data, const Tensor& indices, Tensor& out) {
  ArrayRef<int64_t> shape = data.type.getShape();
  int64_t axis = op.getAxis(), count = indices.type.getDimSize(axis), inner = extent(shape, axis + 1, shape.size());
  LogicalResult result = success();
  withElements(data, out, [&](const auto& from, auto& to) {
    result = forOwnIndices(op, indices, shape, axis, [&](int64_t o, int64_t k, int64_t j, int64_t row) {
      to[(o * count + k) * inner + j] = from[(o * shape[axis] + row) * inner + j];
    });
  });
  return result;
}

int64_t combined(ScatterKind kind, int64_t x, int64_t y) {
  switch (kind) {
    case ScatterKind::replace:
      return y;
    case ScatterKind::add:
      return int64_t(uint64_t(x) + uint64_t(y));
    case ScatterKind::mul:
      return int64_t(uint64_t(x) * uint64_t(y));
    case ScatterKind::min:
      return std::min(x, y);
    case ScatterKind::max:
      return std::max(x, y);
  }
  llvm_unreachable("every kind has a case");
}
double combined(ScatterKind kind, double x, double y) {
  switch (kind) {
    case ScatterKind::replace:
      return y;
    case ScatterKind::add:
      return x + y;
    case ScatterKind::mul:
      return x * y;
    case ScatterKind::min:
      return std::isnan(x) || x < y ? x : y;
    case ScatterKind::max:
      return std::isnan(x) || x > y ? x : y;
  }
  llvm_unreachable("every kind has a case");
}

LogicalResult scatter(ScatterOp op, Operands in, Tensor& out) {
  const Tensor &indices = *in[0], &update = *in[1];
  ArrayRef<int64_t> shape = out.type.getShape();
  int64_t axis = op.getAxis(), count = indices.type.getDimSize(axis), inner = extent(shape, axis + 1, shape.size());
  if (in.size() > 2) out.f = in[2]->f, out.i = in[2]->i;
  LogicalResult result = success();
  withElements(update, out, [&](const auto& from, auto& to) {
    result = forOwnIndices(op, indices, shape, axis, [&](int64_t o, int64_t k, int64_t j, int64_t row) {
      auto& element = to[(o * shape[axis] + row) * inner + j];
      element = combined(op.getKind(), element, from[(o * count + k) * inner + j]);
    });
  });
  return result;
}

LogicalResult topK(TopKOp op, const Tensor& x, Tensor& out) {
  ArrayRef<int64_t> shape = x.type.getShape();
  int64_t axis = op.getAxis(), n = shape[axis], k = op.getK(), inner = extent(shape, axis + 1, shape.size());
  std::vector<int64_t> order(n);
  auto select = [&](const auto& values) {
    for (int64_t line = 0; line < extent(shape, 0, axis) * inner; ++line) {
      const int64_t o = line / inner, j = line % inner;
      auto value = [&](int64_t i) { return values[(o * n + i) * inner + j]; };
      auto isLess = [&](auto a, auto b) { return a < b || (std::isnan(double(b)) && !std::isnan(double(a))); };
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return op.getLargest() ? isLess(value(b), value(a)) : isLess(value(a), value(b));
      });
      for (int64_t i = 0; i < k; ++i) out.i[(o * k + i) * inner + j] = order[i];
    }
  };
  x.isFloat() ? select(x.f) : select(x.i);
  return success();
}

LogicalResult sumPartials(SumPartialsOp op, const Tensor& in, Tensor& out) {
  if (out.size() == 0) return success();
  const size_t columns = size_t(in.type.getShape().back()), rows = in.f.size() / out.size();
  for (size_t k = 0; k < in.f.size(); ++k) out.f[k / (rows * columns) * columns + k % columns] += in.f[k];
  return success();
}

}  // namespace

Outcome evaluator::evaluateIndexing(Operation* op, Operands in, Results out) {
  return llvm::TypeSwitch<Operation*, Outcome>(op)
      .Case<MatMulOp>([&](auto o) { return matmul(o, *in[0], *in[1], out[0]); })
      .Case<MatMulEpilogueOp>([&](auto o) { return matmulEpilogue(o, in, out); })
      .Case<GatherOp>([&](auto o) { return gather(o, *in[0], *in[1], out[0]); })
      .Case<ScatterAddOp>([&](auto o) { return scatterAdd(o, *in[0], *in[1], out[0]); })
      .Case<GatherElementsOp>([&](auto o) { return gatherElements(o, *in[0], *in[1], out[0]); })
      .Case<ScatterOp>([&](auto o) { return scatter(o, in, out[0]); })
      .Case<TopKOp>([&](auto o) { return topK(o, *in[0], out[0]); })
      .Case<SumPartialsOp>([&](auto o) { return sumPartials(o, *in[0], out[0]); })
      .Default([](auto) { return std::nullopt; });
}
