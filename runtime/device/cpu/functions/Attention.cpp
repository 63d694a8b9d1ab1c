// train.attention by tiles of scores: a running maximum and sum for each query, rescaled from tile to tile (Dao et al.,
// "FlashAttention", 2022). A query tile of a head is one item of work, so items are many and independent.
#include <cfloat>
#include <cmath>

#include "runtime/device/cpu/functions/AttentionShape.h"
#include "runtime/device/cpu/functions/Sgemm.h"
#include "runtime/device/cpu/simd/Loops.h"

namespace sheaf::cpu {
namespace {

constexpr int64_t kQueries = plan::kAttentionQueries, kKeys = plan::kAttentionKeys;

class Attention : public LibraryFunction {
 public:
  Attention(const plan::AttentionCall& call, const CallSite& site)
      : shape_(call),
        scratchBytes_(site.scratchPerThread()),
        query_(plan::operandIndex<"query">(call)),
        key_(plan::operandIndex<"key">(call)),
        value_(plan::operandIndex<"value">(call)),
        mask_(plan::operandIndex<"mask">(call)),
        result_(plan::operandIndex<"result">(call)),
        logSumExp_(plan::operandIndex<"log_sum_exp">(call)) {}

  Status run(const Invocation& invocation) const override {
    const int64_t tiles = (shape_.s + kQueries - 1) / kQueries, heads = shape_.b * shape_.h;
    SgemmFailure failure;
    invocation.pool.run(tiles * heads, [&](int64_t item, int thread) {
      // The last queries see the most keys under a causal mask: they come first, so that the pool ends even.
      int64_t tile = tiles - 1 - item / heads, head = item % heads;
      float* scores = reinterpret_cast<float*>(invocation.scratch + thread * scratchBytes_);
      runTile(invocation, head / shape_.h, head % shape_.h, tile * kQueries, scores, failure);
    });
    return failure.status();
  }

 private:
  void runTile(const Invocation& invocation, int64_t batch, int64_t head, int64_t query, float* scores,
               SgemmFailure& failure) const {
    const AttentionShape& p = shape_;
    const int64_t group = head / (p.h / p.g), rows = std::min(kQueries, p.s - query);
    const int64_t first = p.firstKey(query) / kKeys * kKeys, limit = p.keyLimit(query, rows);
    // Scratch of a call of 16 bits: the scores, then tiles of query, result, key and value.
    float *queries = scores + kQueries * kKeys, *results = queries + kQueries * p.d,
          *keyTile = results + kQueries * p.e, *values = keyTile + kKeys * p.d;
    const AttentionShape::Rows q =
        p.load(invocation, query_, (batch * p.s + query) * p.queryRow + head * p.d, p.queryRow, rows, p.d, queries);
    const int64_t resultOffset = (batch * p.s + query) * p.resultRow + head * p.e,
                  resultRow = p.half ? p.e : p.resultRow;
    float* result = p.half ? results : invocation.operand<float>(result_) + resultOffset;
    float* logSumExp = invocation.operand<float>(logSumExp_) + (batch * p.h + head) * p.s + query;
    const float* mask = p.mask ? p.maskOf(invocation.operand<float>(mask_), batch, head) : nullptr;
    float maximum[kQueries], sum[kQueries], bases[kQueries];
    if (mask) p.setBases(mask, query, rows, bases);
    std::fill_n(maximum, rows, -FLT_MAX);
    std::fill_n(sum, rows, 0.0f);
    for (int64_t key = first; key < limit; key += kKeys) {
      const int64_t keys = std::min(kKeys, limit - key);
      const AttentionShape::Rows k =
          p.load(invocation, key_, (batch * p.t + key) * p.keyRow + group * p.d, p.keyRow, keys, p.d, keyTile);
      const AttentionShape::Rows v =
          p.load(invocation, value_, (batch * p.t + key) * p.valueRow + group * p.e, p.valueRow, keys, p.e, values);
      failure.note(
          sgemm(false, true, rows, keys, p.d, p.factor, q.data, q.stride, k.data, k.stride, false, scores, kKeys));
      if (mask) addMask(p, mask, bases, query, rows, key, keys, scores);
      for (int64_t row = 0; row < rows; ++row) {
        const float before = maximum[row];
        const AttentionShape::Seen seen = p.seen(query + row, key, keys);
        std::fill_n(scores + row * kKeys, seen.first, 0.0f);
        const float tileSum =
            loops().softmaxRow(scores + row * kKeys + seen.first, seen.count, keys - seen.first, &maximum[row]);
        const float keep = before == maximum[row] ? 1.0f : loops().exponential(before - maximum[row]);
        if (key > first && keep != 1.0f) loops().scale(result + row * resultRow, p.e, keep);
        sum[row] = sum[row] * keep + tileSum;
      }
      failure.note(
          sgemm(false, false, rows, p.e, keys, 1, scores, kKeys, v.data, v.stride, key > first, result, resultRow));
    }
    for (int64_t row = 0; row < rows; ++row) {
      if (sum[row] == 0) {  // it sees nothing
        std::fill_n(result + row * resultRow, p.e, 0.0f);
        logSumExp[row] = -INFINITY;
        continue;
      }
      loops().scale(result + row * resultRow, p.e, 1 / sum[row]);
      logSumExp[row] = maximum[row] + std::log(sum[row]);
    }
    p.store(invocation, result_, resultOffset, p.resultRow, rows, p.e, result);
  }

  const AttentionShape shape_;
  const int64_t scratchBytes_;
  const int query_, key_, value_, mask_, result_, logSumExp_;  // operands
};

}  // namespace

Function makeFunction(const plan::AttentionCall& call, const CallSite& site) {
  return std::make_unique<Attention>(call, site);
}

}  // namespace sheaf::cpu
