// Attention and its gradient, one query row at a time.
#include <cmath>
#include <limits>

#include "ir/Train/EvaluatorDetail.h"
#include "llvm/ADT/TypeSwitch.h"
#include "runtime/plan/calls/HidingMask.h"

using namespace mlir;
using namespace sheaf::train;
using namespace sheaf::train::evaluator;

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Sizes and strides of query [B, S, H, D], key [B, T, G, D], value [B, T, G, E] and mask [1 or B, 1 or H, S, T].
struct Geometry {
  int64_t B, S, H, D, T, G, E;
  const Tensor* mask;
  double scale;
  bool causal;
  int64_t window;

  Geometry(Operands in, const Tensor* mask, double scale, bool causal, std::optional<uint64_t> window)
      : B(in[0]->type.getDimSize(0)),
        S(in[0]->type.getDimSize(1)),
        H(in[0]->type.getDimSize(2)),
        D(in[0]->type.getDimSize(3)),
        T(in[1]->type.getDimSize(1)),
        G(in[1]->type.getDimSize(2)),
        E(in[2]->type.getDimSize(3)),
        mask(mask),
        scale(scale),
        causal(causal),
        window(window.value_or(uint64_t(T))) {}

  int64_t query(int64_t b, int64_t i, int64_t h) const { return ((b * S + i) * H + h) * D; }
  int64_t result(int64_t b, int64_t i, int64_t h) const { return ((b * S + i) * H + h) * E; }
  int64_t key(int64_t b, int64_t j, int64_t h) const { return ((b * T + j) * G + h / (H / G)) * D; }
  int64_t value(int64_t b, int64_t j, int64_t h) const { return ((b * T + j) * G + h / (H / G)) * E; }
  int64_t row(int64_t b, int64_t i, int64_t h) const { return (b * H + h) * S + i; }

  LogicalResult verify(Operation* op) const {
    if (!mask) return success();
    ArrayRef<int64_t> m = mask->type.getShape();
    if (m.size() == 4 && (m[0] == 1 || m[0] == B) && (m[1] == 1 || m[1] == H) && m[2] == S && m[3] == T)
      return success();
    return op->emitOpError("takes a mask [1 or B, 1 or H, S, T]");
  }

  bool sees(int64_t i, int64_t j) const { return !causal || (j <= i + T - S && j > i + T - S - window); }
  double masked(int64_t b, int64_t i, int64_t j, int64_t h) const {
    ArrayRef<int64_t> m = mask->type.getShape();
    return mask->f[(((m[0] == 1 ? 0 : b) * m[1] + (m[1] == 1 ? 0 : h)) * S + i) * T + j];
  }
  // The largest number of the mask that query i sees if it is at most kHidingMask, else 0.
  double base(int64_t b, int64_t i, int64_t h) const {
    double top = kMinusInfinity;
    for (int64_t j = 0; mask && j < T; ++j) {
      if (!sees(i, j)) continue;
      if (!(masked(b, i, j, h) <= sheaf::plan::kHidingMask)) return 0;
      top = std::max(top, masked(b, i, j, h));
    }
    return top == kMinusInfinity ? 0 : top;
  }
  // The score of query i and key j less the query's base, minus infinity where they do not see each other.
  double score(const Tensor& q, const Tensor& k, int64_t b, int64_t i, int64_t j, int64_t h, double base) const {
    if (!sees(i, j)) return kMinusInfinity;
    double dot = 0;
    for (int64_t d = 0; d < D; ++d) dot += q.f[query(b, i, h) + d] * k.f[key(b, j, h) + d];
    return mask ? dot * scale + masked(b, i, j, h) - base : dot * scale;
  }
};

template <typename F>
void forRows(const Geometry& g, F f) {
  for (int64_t b = 0; b < g.B; ++b)
    for (int64_t i = 0; i < g.S; ++i)
      for (int64_t h = 0; h < g.H; ++h) f(b, i, h);
}

LogicalResult attention(AttentionOp op, Operands in, Results out) {
  Geometry g(in, op.getMask() ? in[3] : nullptr, op.getScale().convertToDouble(), op.getCausal(), op.getWindow());
  if (failed(g.verify(op))) return failure();
  std::vector<double> scores(g.T);
  forRows(g, [&](int64_t b, int64_t i, int64_t h) {
    double top = kMinusInfinity, sum = 0, base = g.base(b, i, h);
    for (int64_t j = 0; j < g.T; ++j) top = std::max(top, scores[j] = g.score(*in[0], *in[1], b, i, j, h, base));
    double& lse = out[1].f[g.row(b, i, h)];
    lse = kMinusInfinity;
    if (top == kMinusInfinity) return;  // Sees nothing: zero.
    for (double& s : scores) sum += (s = std::exp(s - top));
    lse = top + std::log(sum);
    for (int64_t j = 0; j < g.T; ++j)
      for (int64_t e = 0; e < g.E; ++e)
        out[0].f[g.result(b, i, h) + e] += scores[j] / sum * in[2]->f[g.value(b, j, h) + e];
  });
  return success();
}

// With p = exp(score - lse) and dp = dout . v, the score's gradient is p (dp - dout . out).
LogicalResult attentionGrad(AttentionGradOp op, Operands in, Results out) {
  Geometry g(in, op.getMask() ? in[6] : nullptr, op.getScale().convertToDouble(), op.getCausal(), op.getWindow());
  if (failed(g.verify(op))) return failure();
  const Tensor &q = *in[0], &k = *in[1], &v = *in[2], &result = *in[3], &lse = *in[4], &gradient = *in[5];
  forRows(g, [&](int64_t b, int64_t i, int64_t h) {
    double rowLse = lse.f[g.row(b, i, h)], total = 0, base = g.base(b, i, h);
    if (rowLse == kMinusInfinity) return;
    int64_t at = g.result(b, i, h), query = g.query(b, i, h);
    for (int64_t e = 0; e < g.E; ++e) total += gradient.f[at + e] * result.f[at + e];
    for (int64_t j = 0; j < g.T; ++j) {
      double p = std::exp(g.score(q, k, b, i, j, h, base) - rowLse), dp = 0;
      int64_t key = g.key(b, j, h), value = g.value(b, j, h);
      for (int64_t e = 0; e < g.E; ++e) {
        dp += gradient.f[at + e] * v.f[value + e];
        out[2].f[value + e] += p * gradient.f[at + e];
      }
      double ds = p * (dp - total) * g.scale;
      for (int64_t d = 0; d < g.D; ++d) {
        out[0].f[query + d] += ds * k.f[key + d];
        out[1].f[key + d] += ds * q.f[query + d];
      }
    }
  });
  return success();
}

}  // namespace

Outcome evaluator::evaluateAttention(Operation* op, Operands in, Results out) {
  return llvm::TypeSwitch<Operation*, Outcome>(op)
      .Case<AttentionOp>([&](auto o) { return attention(o, in, out); })
      .Case<AttentionGradOp>([&](auto o) { return attentionGrad(o, in, out); })
      .Default([](auto) { return std::nullopt; });
}
