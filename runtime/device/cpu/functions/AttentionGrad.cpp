// train.attention_grad by tiles: scores are computed again from query, key and the stored log-sum-exp. One item of work
// is a key/value head of a batch entry: it accumulates its own gradients in one fixed order.
#include <cmath>

#include "runtime/device/cpu/functions/AttentionShape.h"
#include "runtime/device/cpu/functions/Sgemm.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

constexpr int64_t kQueries = plan::kAttentionQueries, kKeys = plan::kAttentionKeys;

class AttentionGrad : public LibraryFunction {
 public:
  AttentionGrad(const plan::AttentionGradCall& call, const CallSite& site)
      : shape_(call),
        gradientRow_(call.gradientRow),
        queryGradientRow_(call.queryGradientRow),
        keyGradientRow_(call.keyGradientRow),
        valueGradientRow_(call.valueGradientRow),
        scratchBytes_(site.scratchPerThread()),
        query_(plan::operandIndex<"query">(call)),
        key_(plan::operandIndex<"key">(call)),
        value_(plan::operandIndex<"value">(call)),
        result_(plan::operandIndex<"result">(call)),
        logSumExp_(plan::operandIndex<"log_sum_exp">(call)),
        gradient_(plan::operandIndex<"gradient">(call)),
        mask_(plan::operandIndex<"mask">(call)),
        queryGradient_(plan::operandIndex<"query_gradient">(call)),
        keyGradient_(plan::operandIndex<"key_gradient">(call)),
        valueGradient_(plan::operandIndex<"value_gradient">(call)) {}

  Status run(const Invocation& invocation) const override {
    SgemmFailure failure;
    invocation.pool.run(shape_.b * shape_.g, [&](int64_t item, int thread) {
      const Scratch scratch(invocation.scratch + thread * scratchBytes_, shape_);
      runGroup(invocation, item / shape_.g, item % shape_.g, scratch, failure);
    });
    return failure.status();
  }

 private:
  struct Scratch {
    Scratch(std::byte* bytes, const AttentionShape& p)
        : scores(reinterpret_cast<float*>(bytes)),
          gradients(scores + kQueries * kKeys),
          delta(gradients + kQueries * kKeys),
          queryTile(delta + p.s),
          gradientTile(queryTile + kQueries * p.d),
          keyTile(gradientTile + kQueries * p.e),
          valueTile(keyTile + kKeys * p.d),
          queryGradient(valueTile + kKeys * p.e),
          keyGradient(queryGradient + p.s * p.d),
          valueGradient(keyGradient + p.t * p.d) {}
    float* scores;     // [kQueries, kKeys]
    float* gradients;  // of the scores
    float* delta;      // [s]: the dot product of result and gradient of each query
    // Of a call of 16 bits only, in f32: tiles, and the accumulators of the current head's gradients.
    float *queryTile, *gradientTile, *keyTile, *valueTile, *queryGradient, *keyGradient, *valueGradient;
  };

  // A query head and the key/value head it reads: where they begin, in elements, and where their gradients are summed.
  struct Head {
    int64_t query, key, value, result, gradient, queryGradient, keyGradient, valueGradient;
    const float *logSumExp, *mask;
    float *querySums, *keySums, *valueSums;
  };
  int64_t querySumsRow() const { return shape_.half ? shape_.d : queryGradientRow_; }
  int64_t keySumsRow() const { return shape_.half ? shape_.d : keyGradientRow_; }
  int64_t valueSumsRow() const { return shape_.half ? shape_.e : valueGradientRow_; }

  Head head(const Invocation& invocation, int64_t batch, int64_t head, int64_t group, const Scratch& scratch) const {
    const AttentionShape& p = shape_;
    const int64_t queries = batch * p.s, keys = batch * p.t;
    Head at{queries * p.queryRow + head * p.d,
            keys * p.keyRow + group * p.d,
            keys * p.valueRow + group * p.e,
            queries * p.resultRow + head * p.e,
            queries * gradientRow_ + head * p.e,
            queries * queryGradientRow_ + head * p.d,
            keys * keyGradientRow_ + group * p.d,
            keys * valueGradientRow_ + group * p.e,
            invocation.operand<float>(logSumExp_) + (batch * p.h + head) * p.s,
            p.mask ? p.maskOf(invocation.operand<float>(mask_), batch, head) : nullptr,
            scratch.queryGradient,
            scratch.keyGradient,
            scratch.valueGradient};
    if (p.half) return at;
    at.querySums = invocation.operand<float>(queryGradient_) + at.queryGradient;
    at.keySums = invocation.operand<float>(keyGradient_) + at.keyGradient;
    at.valueSums = invocation.operand<float>(valueGradient_) + at.valueGradient;
    return at;
  }

  void runGroup(const Invocation& invocation, int64_t batch, int64_t group, const Scratch& scratch,
                SgemmFailure& failure) const {
    const AttentionShape& p = shape_;
    const int64_t queryHeads = p.h / p.g;
    for (int64_t i = 0; i < queryHeads; ++i) {
      const Head at = head(invocation, batch, group * queryHeads + i, group, scratch);
      for (int64_t row = 0; row < p.s; ++row) {
        // The tiles are still unused: each holds a row here.
        const auto result = p.load(invocation, result_, at.result + row * p.resultRow, 0, 1, p.e, scratch.valueTile);
        const auto gradient =
            p.load(invocation, gradient_, at.gradient + row * gradientRow_, 0, 1, p.e, scratch.gradientTile);
        scratch.delta[row] = loops().dot(result.data, gradient.data, p.e);
      }
      for (int64_t row = 0; row < p.s; ++row) std::fill_n(at.querySums + row * querySumsRow(), p.d, 0.0f);
      for (int64_t key = 0; key < p.t; key += kKeys) {
        const int64_t keys = std::min(kKeys, p.t - key);
        if (i == 0) {
          for (int64_t row = key; row < key + keys; ++row) {
            std::fill_n(at.keySums + row * keySumsRow(), p.d, 0.0f);
            std::fill_n(at.valueSums + row * valueSumsRow(), p.e, 0.0f);
          }
        }
        const auto k = p.load(invocation, key_, at.key + key * p.keyRow, p.keyRow, keys, p.d, scratch.keyTile);
        const auto v =
            p.load(invocation, value_, at.value + key * p.valueRow, p.valueRow, keys, p.e, scratch.valueTile);
        for (int64_t query = 0; query < p.s; query += kQueries)
          runTile(invocation, at, k, v, query, key, scratch, failure);
      }
      p.store(invocation, queryGradient_, at.queryGradient, queryGradientRow_, p.s, p.d, at.querySums);
      if (i + 1 < queryHeads) continue;
      p.store(invocation, keyGradient_, at.keyGradient, keyGradientRow_, p.t, p.d, at.keySums);
      p.store(invocation, valueGradient_, at.valueGradient, valueGradientRow_, p.t, p.e, at.valueSums);
    }
  }

  void runTile(const Invocation& invocation, const Head& at, AttentionShape::Rows k, AttentionShape::Rows v,
               int64_t query, int64_t key, const Scratch& scratch, SgemmFailure& failure) const {
    const AttentionShape& p = shape_;
    const int64_t rows = std::min(kQueries, p.s - query), keys = std::min(kKeys, p.keyLimit(query, rows) - key);
    if (keys <= 0 || key + keys <= p.firstKey(query)) return;
    const auto q = p.load(invocation, query_, at.query + query * p.queryRow, p.queryRow, rows, p.d, scratch.queryTile);
    const auto gradient = p.load(invocation, gradient_, at.gradient + query * gradientRow_, gradientRow_, rows, p.e,
                                 scratch.gradientTile);
    float *scores = scratch.scores, *gradients = scratch.gradients;
    failure.note(
        sgemm(false, true, rows, keys, p.d, p.factor, q.data, q.stride, k.data, k.stride, false, scores, kKeys));
    if (p.mask) {
      float bases[kQueries];
      p.setBases(at.mask, query, rows, bases);
      addMask(p, at.mask, bases, query, rows, key, keys, scores);
    }
    failure.note(sgemm(false, true, rows, keys, p.e, 1, gradient.data, gradient.stride, v.data, v.stride, false,
                       gradients, kKeys));
    for (int64_t row = 0; row < rows; ++row) {
      const float logSumExp = at.logSumExp[query + row];
      // A query that sees nothing has no gradient, whatever its scores are.
      const AttentionShape::Seen seen =
          logSumExp == -INFINITY ? AttentionShape::Seen{0, 0} : p.seen(query + row, key, keys);
      float *weights = scores + row * kKeys, *slopes = gradients + row * kKeys;
      std::fill_n(weights, seen.first, 0.0f);
      std::fill_n(slopes, seen.first, 0.0f);
      loops().softmaxGradientRow(weights + seen.first, slopes + seen.first, seen.count, keys - seen.first, logSumExp,
                                 scratch.delta[query + row], p.factor);
    }
    failure.note(sgemm(true, false, keys, p.e, rows, 1, scores, kKeys, gradient.data, gradient.stride, true,
                       at.valueSums + key * valueSumsRow(), valueSumsRow()));
    failure.note(sgemm(true, false, keys, p.d, rows, 1, gradients, kKeys, q.data, q.stride, true,
                       at.keySums + key * keySumsRow(), keySumsRow()));
    failure.note(sgemm(false, false, rows, p.d, keys, 1, gradients, kKeys, k.data, k.stride, true,
                       at.querySums + query * querySumsRow(), querySumsRow()));
  }

  const AttentionShape shape_;
  const int64_t gradientRow_, queryGradientRow_, keyGradientRow_, valueGradientRow_, scratchBytes_;
  // Operands.
  const int query_, key_, value_, result_, logSumExp_, gradient_, mask_, queryGradient_, keyGradient_, valueGradient_;
};

}  // namespace

Function makeFunction(const plan::AttentionGradCall& call, const CallSite& site) {
  return std::make_unique<AttentionGrad>(call, site);
}

}  // namespace sheaf::cpu
