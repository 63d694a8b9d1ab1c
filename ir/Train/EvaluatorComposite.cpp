// Softmax, norms, cross entropy, dropout, random numbers, and the sum over ranks.
#include <algorithm>
#include <cmath>

#include "ir/Train/EvaluatorDetail.h"
#include "ir/Train/Philox.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace sheaf::train;
using namespace sheaf::train::evaluator;

namespace {

int64_t columnsOf(const Tensor& t) {
  return t.type.getRank() ? t.type.getShape().back() : 1;
}

// The log-sum-exp of a row is maximum + logSum. The sum of both is not formed: of large numbers it would lose the
// second.
struct RowSum {
  double maximum, logSum = 0;
};

RowSum rowSum(const double* row, int64_t n) {
  double top = *std::max_element(row, row + n), sum = 0;
  if (std::isinf(top)) return {top};
  for (int64_t j = 0; j < n; ++j) sum += std::exp(row[j] - top);
  return {top, std::log(sum)};
}

LogicalResult softmax(const Tensor& x, Tensor& out, bool logarithm) {
  int64_t n = columnsOf(x);
  for (int64_t r = 0; n && r < x.size() / n; ++r) {
    const RowSum s = rowSum(&x.f[r * n], n);
    for (int64_t j = r * n; j < (r + 1) * n; ++j) {
      const double shifted = x.f[j] - s.maximum - s.logSum;
      out.f[j] = logarithm ? shifted : std::exp(shifted);
    }
  }
  return success();
}

// Layer norm; `centre` false leaves the mean in, as RMS norm does.
LogicalResult normalizeRows(Operation* op, Operands in, Tensor& out, double epsilon, bool centre) {
  const Tensor &x = *in[0], &scale = *in[1];
  const Tensor* bias = in.size() > 2 ? in[2] : nullptr;
  int64_t n = columnsOf(x);
  if (scale.size() != n || (bias && bias->size() != n)) return op->emitOpError("takes one scale and bias a column");
  for (int64_t r = 0; n && r < x.size() / n; ++r) {
    const double* row = &x.f[r * n];
    double mean = 0, square = 0;
    if (centre) {
      for (int64_t j = 0; j < n; ++j) mean += row[j];
      mean /= double(n);
    }
    for (int64_t j = 0; j < n; ++j) square += (row[j] - mean) * (row[j] - mean);
    double deviation = std::sqrt(square / double(n) + epsilon);
    for (int64_t j = 0; j < n; ++j)
      out.f[r * n + j] = (row[j] - mean) / deviation * scale.f[j] + (bias ? bias->f[j] : 0);
  }
  return success();
}

LogicalResult crossEntropy(CrossEntropyOp op, const Tensor& logits, const Tensor& labels, Results out) {
  int64_t rows = logits.type.getDimSize(0), classes = logits.type.getDimSize(1);
  if (classes == 0) return op.emitOpError("has no classes");
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = &logits.f[r * classes];
    const RowSum s = rowSum(row, classes);
    out[1].f[r] = s.logSum;
    int64_t label = labels.i[r];
    if (op.getIgnoreIndex() && label == int64_t(*op.getIgnoreIndex())) continue;
    if (label < 0 || label >= classes)
      return op.emitOpError() << "label " << label << " is not one of " << classes << " classes";
    out[0].f[r] = s.maximum - row[label] + s.logSum;
  }
  return success();
}

// The random word of a local element of a tensor of `size` elements a rank.
template <typename Op>
uint32_t randomWord(Op op, int64_t e, int64_t size, const EvaluatorOptions& options) {
  const int64_t blocks = op.getBlocks(), run = blocks ? size / blocks : size;
  const uint64_t element = uint64_t(blocks ? (e / run * options.ranks + options.rank) * run + e % run : e);
  return philox(options.seed, element / 4, uint32_t(op.getNode()), uint32_t(options.step))[element % 4];
}

LogicalResult dropout(DropoutOp op, const Tensor& x, Tensor& out, const EvaluatorOptions& options) {
  double ratio = op.getRatio().convertToDouble();
  if (!(ratio >= 0 && ratio <= 1)) return op.emitOpError("drops a share that is not between 0 and 1");
  for (int64_t e = 0; e < x.size(); ++e) {
    bool keep = double(randomWord(op, e, x.size(), options)) >= ratio * 4294967296.0;
    out.f[e] = keep ? x.f[e] * (1 / (1 - ratio)) : 0;
  }
  return success();
}

LogicalResult randomUniform(RandomUniformOp op, Tensor& out, const EvaluatorOptions& options) {
  for (int64_t e = 0; e < out.size(); ++e)
    out.f[e] = (double(randomWord(op, e, out.size(), options) >> 9) + 0.5) / double(1 << 23);
  return success();
}

LogicalResult globalSum(const Tensor& x, Tensor& out, const EvaluatorOptions& options) {
  out.f = x.f;
  if (options.globalSum) options.globalSum(out);
  return success();
}

LogicalResult gatherRows(GatherRowsOp op, const Tensor& x, Tensor& out, const EvaluatorOptions& options) {
  if (options.gatherRows)
    options.gatherRows(x, out);
  else if (x.size() != out.size())
    return op.emitOpError("cannot be evaluated for several leaves without EvaluatorOptions::gatherRows");
  else
    out = x;
  return success();
}

}  // namespace

Outcome evaluator::evaluateComposite(Operation* op, Operands in, Results out, const EvaluatorOptions& options) {
  return llvm::TypeSwitch<Operation*, Outcome>(op)
      .Case<SoftmaxOp>([&](auto) { return softmax(*in[0], out[0], false); })
      .Case<LogSoftmaxOp>([&](auto) { return softmax(*in[0], out[0], true); })
      .Case<LayerNormOp>([&](auto o) { return normalizeRows(op, in, out[0], o.getEpsilon().convertToDouble(), true); })
      .Case<RmsNormOp>([&](auto o) { return normalizeRows(op, in, out[0], o.getEpsilon().convertToDouble(), false); })
      .Case<CrossEntropyOp>([&](auto o) { return crossEntropy(o, *in[0], *in[1], out); })
      .Case<DropoutOp>([&](auto o) { return dropout(o, *in[0], out[0], options); })
      .Case<RandomUniformOp>([&](auto o) { return randomUniform(o, out[0], options); })
      .Case<GlobalSumOp>([&](auto) { return globalSum(*in[0], out[0], options); })
      .Case<GatherRowsOp>([&](auto o) { return gatherRows(o, *in[0], out[0], options); })
      .Default([](auto) { return std::nullopt; });
}
