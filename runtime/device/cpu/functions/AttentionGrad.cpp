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
  explicit AttentionGrad(const plan::LibraryCall& call)
      : shape_(call),
        gradientRow_(plan::integer(call, "gradient_row")),
        queryGradientRow_(plan::integer(call, "query_gradient_row")),
        keyGradientRow_(plan::integer(call, "key_gradient_row")),
        valueGradientRow_(plan::integer(call, "value_gradient_row")),
        scratchBytes_(call.scratch_per_thread()),
        outputs_(shape_.mask ? 7 : 6) {}

  Status run(const Invocation& invocation) const override {
    SgemmFailure failure;
    invocation.pool.run(shape_.b * shape_.g, [&](int64_t item, int thread) {
      Scratch scratch(invocation.scratch + thread * scratchBytes_);
      runGroup(invocation, item / shape_.g, item % shape_.g, scratch, failure);
    });
    return failure.status();
  }

 private:
  struct Scratch {
    explicit Scratch(std::byte* bytes)
        : scores(reinterpret_cast<float*>(bytes)),
          gradients(scores + kQueries * kKeys),
          delta(gradients + kQueries * kKeys) {}
    float* scores;     // [kQueries, kKeys]
    float* gradients;  // of the scores
    float* delta;      // [s]: the dot product of result and gradient of each query
  };

  // Addresses of one query head and of the key/value head it reads.
  struct Head {
    const float *query, *key, *value, *result, *logSumExp, *gradient, *mask;
    float *queryGradient, *keyGradient, *valueGradient;
  };

  Head head(const Invocation& invocation, int64_t batch, int64_t head, int64_t group) const {
    const AttentionShape& p = shape_;
    const int64_t queries = batch * p.s, keys = batch * p.t;
    return {invocation.operand<float>(0) + queries * p.queryRow + head * p.d,
            invocation.operand<float>(1) + keys * p.keyRow + group * p.d,
            invocation.operand<float>(2) + keys * p.valueRow + group * p.e,
            invocation.operand<float>(3) + queries * p.resultRow + head * p.e,
            invocation.operand<float>(4) + (batch * p.h + head) * p.s,
            invocation.operand<float>(5) + queries * gradientRow_ + head * p.e,
            p.mask ? p.maskOf(invocation.operand<float>(6), batch, head) : nullptr,
            invocation.operand<float>(outputs_) + queries * queryGradientRow_ + head * p.d,
            invocation.operand<float>(outputs_ + 1) + keys * keyGradientRow_ + group * p.d,
            invocation.operand<float>(outputs_ + 2) + keys * valueGradientRow_ + group * p.e};
  }

  void runGroup(const Invocation& invocation, int64_t batch, int64_t group, Scratch& scratch,
                SgemmFailure& failure) const {
    const AttentionShape& p = shape_;
    const int64_t queryHeads = p.h / p.g;
    for (int64_t i = 0; i < queryHeads; ++i) {
      const Head at = head(invocation, batch, group * queryHeads + i, group);
      for (int64_t row = 0; row < p.s; ++row)
        scratch.delta[row] = loops().dot(at.result + row * p.resultRow, at.gradient + row * gradientRow_, p.e);
      for (int64_t row = 0; row < p.s; ++row) std::fill_n(at.queryGradient + row * queryGradientRow_, p.d, 0.0f);
      for (int64_t key = 0; key < p.t; key += kKeys) {
        if (i == 0) {
          for (int64_t row = key; row < std::min(key + kKeys, p.t); ++row) {
            std::fill_n(at.keyGradient + row * keyGradientRow_, p.d, 0.0f);
            std::fill_n(at.valueGradient + row * valueGradientRow_, p.e, 0.0f);
          }
        }
        for (int64_t query = 0; query < p.s; query += kQueries) runTile(at, query, key, scratch, failure);
      }
    }
  }

  void runTile(const Head& at, int64_t query, int64_t key, Scratch& scratch, SgemmFailure& failure) const {
    const AttentionShape& p = shape_;
    const int64_t rows = std::min(kQueries, p.s - query), keys = std::min(kKeys, p.keyLimit(query, rows) - key);
    if (keys <= 0) return;
    const float *q = at.query + query * p.queryRow, *k = at.key + key * p.keyRow, *v = at.value + key * p.valueRow;
    const float* gradient = at.gradient + query * gradientRow_;
    float *scores = scratch.scores, *gradients = scratch.gradients;
    failure.note(sgemm(false, true, rows, keys, p.d, p.scale, q, p.queryRow, k, p.keyRow, 0, scores, kKeys));
    if (p.mask) addMask(p, at.mask, query, rows, key, keys, scores, loops().add);
    failure.note(sgemm(false, true, rows, keys, p.e, 1, gradient, gradientRow_, v, p.valueRow, 0, gradients, kKeys));
    for (int64_t row = 0; row < rows; ++row) {
      const float logSumExp = at.logSumExp[query + row];
      // A query that sees nothing has no gradient, whatever its scores are.
      const int64_t seen = logSumExp == -INFINITY ? 0 : p.seen(query + row, key, keys);
      loops().softmaxGradientRow(scores + row * kKeys, gradients + row * kKeys, seen, keys, logSumExp,
                                 scratch.delta[query + row], p.scale);
    }
    failure.note(sgemm(true, false, keys, p.e, rows, 1, scores, kKeys, gradient, gradientRow_, 1,
                       at.valueGradient + key * valueGradientRow_, valueGradientRow_));
    failure.note(sgemm(true, false, keys, p.d, rows, 1, gradients, kKeys, q, p.queryRow, 1,
                       at.keyGradient + key * keyGradientRow_, keyGradientRow_));
    failure.note(sgemm(false, false, rows, p.d, keys, 1, gradients, kKeys, k, p.keyRow, 1,
                       at.queryGradient + query * queryGradientRow_, queryGradientRow_));
  }

  const AttentionShape shape_;
  const int64_t gradientRow_, queryGradientRow_, keyGradientRow_, valueGradientRow_, scratchBytes_;
  const int outputs_;
};

}  // namespace

std::unique_ptr<const LibraryFunction> makeAttentionGrad(const plan::LibraryCall& call) {
  return std::make_unique<AttentionGrad>(call);
}

}  // namespace sheaf::cpu
