// Matrix products, gather and scatter-add, sums over partials and ranks.
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

LogicalResult sumPartials(SumPartialsOp op, const Tensor& in, Tensor& out) {
  if (out.size() == 0) return success();
  for (size_t k = 0; k < in.f.size(); ++k) out.f[k % out.size()] += in.f[k];
  return success();
}

}  // namespace

Outcome evaluator::evaluateIndexing(Operation* op, Operands in, Results out) {
  return llvm::TypeSwitch<Operation*, Outcome>(op)
      .Case<MatMulOp>([&](auto o) { return matmul(o, *in[0], *in[1], out[0]); })
      .Case<MatMulEpilogueOp>([&](auto o) { return matmulEpilogue(o, in, out); })
      .Case<GatherOp>([&](auto o) { return gather(o, *in[0], *in[1], out[0]); })
      .Case<ScatterAddOp>([&](auto o) { return scatterAdd(o, *in[0], *in[1], out[0]); })
      .Case<SumPartialsOp>([&](auto o) { return sumPartials(o, *in[0], out[0]); })
      .Default([](auto) { return std::nullopt; });
}
