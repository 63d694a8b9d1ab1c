// Attention and rotary position embedding.
#include <cmath>

#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// [B, H, S, D] or [B, S, H*D] as [B, S, H, D], the layout of train.attention; absent after an error.
Tensor headsLast(Node& n, const Tensor& x, int64_t heads) {
  if (x.rank() == 4) return n.emit.transpose(x, {0, 2, 1, 3});
  if (x.rank() == 3 && heads >= 1 && x.dim(2) % heads == 0)
    return n.emit.reshape(x, {x.dim(0), x.dim(1), heads, x.dim(2) / heads});
  return n.error() << "takes tensors of rank 4, or of rank 3 with a number of heads that divides the last dimension",
         Tensor();
}

// Whether a parameter is among what a value of floats is computed from.
bool dependsOnParameter(Value value) {
  SmallVector<Value> pending{value};
  DenseSet<Value> seen;
  while (!pending.empty()) {
    Value v = pending.pop_back_val();
    if (!v || !seen.insert(v).second || !isa<FloatType>(getElementTypeOrSelf(v.getType()))) continue;
    Operation* op = v.getDefiningOp();
    if (isa_and_nonnull<train::ReadOp>(op)) return true;
    if (op) llvm::append_range(pending, op->getOperands());
  }
  return false;
}

// Softmax(scale * Q K^T + mask) V, as ONNX defines it for caches, windows and caps.
class Attention {
 public:
  explicit Attention(Node& n) : n(n), e(n.emit) {}

  LogicalResult run() {
    if (failed(readOperands()) || failed(addCaches())) return failure();
    if (failed(mask())) return failure();
    // The operation gives its mask no gradient.
    if (n.number("softcap", 0) != 0 || n.uses(3) || (bias && dependsOnParameter(bias.value()))) return writtenOut();
    double scale = n.number("scale", defaultScale());
    Value query = e.materialize(q), key = e.materialize(k), value = e.materialize(v);
    auto op = train::AttentionOp::create(e.ops(), e.location(), query, key, value, bias ? e.materialize(bias) : Value(),
                                         e.ops().getF64FloatAttr(scale), causal ? e.ops().getUnitAttr() : UnitAttr(),
                                         window ? e.ops().getI64IntegerAttr(window) : IntegerAttr());
    Tensor result = Value(op.getResult());
    if (flat) return n.set(0, e.reshape(result, {result.dim(0), result.dim(1), result.dim(2) * result.dim(3)}));
    return n.set(0, e.transpose(result, {0, 2, 1, 3}));
  }

 private:
  double defaultScale() const { return 1 / std::sqrt(double(std::max<int64_t>(q.dim(3), 1))); }

  LogicalResult readOperands() {
    q = n.input(0), k = n.input(1), v = n.input(2);
    if (!q.isFloat() || q.elementType() != k.elementType() || q.elementType() != v.elementType())
      return n.error() << "takes floating-point numbers of one type";
    flat = q.rank() == 3;
    int64_t heads = n.integer("q_num_heads", 0), groups = n.integer("kv_num_heads", heads);
    q = headsLast(n, q, heads), k = headsLast(n, k, groups), v = headsLast(n, v, groups);
    return success(q && k && v);
  }

  // Keys and values of earlier steps come first; all of them are results, too.
  LogicalResult addCaches() {
    Tensor pastKey = n.input(4), pastValue = n.input(5);
    if (bool(pastKey) != bool(pastValue)) return n.error() << "takes past keys and values together";
    if (pastKey) {
      if (pastKey.rank() != 4 || pastValue.rank() != 4 || pastKey.dim(2) != pastValue.dim(2))
        return n.error() << "past keys and values have four dimensions and one length";
      if (n.input(6)) return n.error() << "takes either past keys and values or nonpad_kv_seqlen";
      offset = pastKey.dim(2);
      k = e.concat({e.transpose(pastKey, {0, 2, 1, 3}), k}, 1);
      v = e.concat({e.transpose(pastValue, {0, 2, 1, 3}), v}, 1);
    }
    if (!k || !v) return failure();
    if (q.dim(0) != k.dim(0) || k.dim(0) != v.dim(0) || k.dim(1) != v.dim(1) || k.dim(2) != v.dim(2) ||
        q.dim(3) != k.dim(3) || k.dim(2) == 0 || q.dim(2) % k.dim(2))
      return n.error() << "the shapes of query, key and value do not fit";
    if (n.uses(1) && failed(n.set(1, e.transpose(k, {0, 2, 1, 3})))) return failure();
    return n.uses(2) ? n.set(2, e.transpose(v, {0, 2, 1, 3})) : success();
  }

  LogicalResult hide(const Tensor& seen) {
    Tensor summand = e.select(seen, e.splat(q.elementType(), {}, 0), e.splat(q.elementType(), {}, -INFINITY));
    bias = bias ? e.binary<train::AddOp>(bias, summand) : summand;
    return success(bool(bias));
  }

  // What each query sees, as flags of the operation where that is possible, else as summands [b, h, S, T].
  LogicalResult mask() {
    const int64_t queries = q.dim(1), keys = k.dim(1);
    if (Tensor given = n.input(3)) {
      if (given.rank() < 1 || given.rank() > 4 || (!given.isBool() && given.elementType() != q.elementType()))
        return n.error() << "the mask must be boolean or of the query's element type, with at most four dimensions";
      Shape shape(4 - given.rank(), 1);
      llvm::append_range(shape, given.shape());
      given = e.reshape(given, shape);
      // A mask that is shorter than the keys hides the others. A mask of one key is broadcast before opset 24.
      if (int64_t more = keys - shape[3]; more > 0 && (shape[3] != 1 || n.opset >= 24)) {
        shape[3] = more;
        double hidden = given.isBool() ? 0 : -INFINITY;
        given = e.concat({given, e.splat(given.elementType(), shape, hidden)}, 3);
      }
      if (!given) return failure();
      if (!given.isBool())
        bias = given;
      else if (failed(hide(given)))
        return failure();
    }
    Type i64 = e.ops().getI64Type();
    Tensor valid = n.input(6);
    if (valid && (valid.shape() != ArrayRef<int64_t>{q.dim(0)} || valid.isFloat() || valid.isBool()))
      return n.error() << "nonpad_kv_seqlen must be one integer a row";
    if (valid) valid = e.reshape(e.cast(valid, i64), {q.dim(0), 1, 1, 1});
    causal = n.integer("is_causal", 0);
    int64_t left = n.integer("left_window_size", -1), right = n.integer("right_window_size", -1);
    if (left < -1 || right < -1) return n.error() << "a window size is -1 or more";
    // No query and key are farther apart, so that larger windows hide nothing.
    left = std::min(left, queries + keys), right = std::min(right, queries + keys);
    // train.attention counts from the last query and the last key, over a window before them.
    const bool asFlags = causal && !valid && offset + queries == keys;
    if (asFlags && left >= 0 && left < keys) window = left + 1;
    if (!asFlags && (causal || left >= 0 || right >= 0 || valid)) {
      const Shape square{1, 1, queries, keys};
      Tensor column = e.iota(i64, square, 3), row = e.iota(i64, square, 2);
      row = valid ? e.binary<train::AddOp>(row, e.scalar<train::SubOp>(valid, double(queries)))
                  : e.scalar<train::AddOp>(row, double(offset));
      auto compare = [&](train::ComparePredicate p, const Tensor& bound) { return hide(e.compare(p, column, bound)); };
      if (causal && failed(compare(train::ComparePredicate::le, row))) return failure();
      if (left >= 0 && failed(compare(train::ComparePredicate::ge, e.scalar<train::SubOp>(row, double(left)))))
        return failure();
      if (right >= 0 && failed(compare(train::ComparePredicate::le, e.scalar<train::AddOp>(row, double(right)))))
        return failure();
      if (valid && failed(compare(train::ComparePredicate::lt, valid))) return failure();
      causal = false;
    }
    if (!bias) return success();
    Shape whole(bias.shape());
    whole[2] = queries, whole[3] = keys;
    if (!(bias = e.expand(bias, whole))) return failure();
    if ((bias.dim(0) != 1 && bias.dim(0) != q.dim(0)) || (bias.dim(1) != 1 && bias.dim(1) != q.dim(2)))
      return n.error() << "the mask does not broadcast to [batch, heads, queries, keys]";
    return success();
  }

  // Scores, probabilities and their product with the values, each an op.
  LogicalResult writtenOut() {
    const int64_t heads = q.dim(2), keys = k.dim(1), queries = q.dim(1);
    auto perHead = [&](const Tensor& x) {
      const int64_t repeats = heads / x.dim(2);
      Tensor moved = e.transpose(x, {0, 2, 1, 3});
      if (!moved || repeats == 1) return moved;
      Shape spread{x.dim(0), x.dim(2), 1, x.dim(1), x.dim(3)}, full = spread;
      full[2] = repeats;
      return e.reshape(e.expand(e.reshape(moved, spread), full), {x.dim(0), heads, x.dim(1), x.dim(3)});
    };
    Tensor scores =
        e.scalar<train::MulOp>(e.matmul(perHead(q), perHead(k), false, true), n.number("scale", defaultScale()));
    const int64_t mode = n.integer("qk_matmul_output_mode", 0);
    Tensor shown = scores;
    if (double cap = n.number("softcap", 0); cap != 0)
      scores = e.scalar<train::MulOp>(e.unary<train::TanhOp>(e.scalar<train::DivOp>(scores, cap)), cap);
    if (mode == 1) shown = scores;
    if (causal) {
      const Shape square{1, 1, queries, keys};
      Type i64 = e.ops().getI64Type();
      Tensor column = e.iota(i64, square, 3), row = e.scalar<train::AddOp>(e.iota(i64, square, 2), double(offset));
      if (failed(hide(e.compare(train::ComparePredicate::le, column, row)))) return failure();
      if (window &&
          failed(hide(e.compare(train::ComparePredicate::gt, column, e.scalar<train::SubOp>(row, double(window))))))
        return failure();
    }
    Tensor blind;  // queries that see nothing
    if (bias) {
      if (mode == 2) shown = e.binary<train::AddOp>(scores, bias);
      Tensor best = e.reduce(train::ReduceKind::max, bias, {3});
      blind = e.compare(train::ComparePredicate::eq, best, e.splatLike(best, -INFINITY));
      scores = e.binary<train::AddOp>(scores, e.select(blind, e.splatLike(bias, 0), bias));
    } else if (mode == 2) {
      shown = scores;
    }
    Tensor probabilities = e.softmax(scores, 3, false);
    if (blind) probabilities = e.select(blind, e.splatLike(probabilities, 0), probabilities);
    if (mode == 3) shown = probabilities;
    if (n.uses(3) && failed(n.set(3, shown))) return failure();
    Tensor result = e.matmul(probabilities, perHead(v));
    if (!flat || !result) return n.set(0, result);
    return n.set(0, e.reshape(e.transpose(result, {0, 2, 1, 3}), {q.dim(0), queries, heads * v.dim(3)}));
  }

  Node& n;
  Emitter& e;
  Tensor q, k, v, bias;  // [B, S, H, D], [B, T, G, D], [B, T, G, E]; [b, h, S, T]
  bool flat = false, causal = false;
  int64_t offset = 0, window = 0;  // keys before the first query's own; of flags: 0 is none
};

LogicalResult attention(Node& n) {
  return Attention(n).run();
}

// Elements start, start + step, ... of the last dimension.
Tensor lastSlice(Emitter& e, const Tensor& x, int64_t start, int64_t size, int64_t step = 1) {
  if (!x) return {};
  Shape starts(x.rank(), 0), sizes(x.shape()), steps(x.rank(), 1);
  starts.back() = start;
  sizes.back() = size;
  steps.back() = step;
  return e.slice(x, starts, sizes, steps);
}

LogicalResult rotaryEmbedding(Node& n) {
  Emitter& e = n.emit;
  bool flat = n.input(0).rank() == 3, interleaved = n.integer("interleaved", 0);
  Tensor x = headsLast(n, n.input(0), n.integer("num_heads", 0));
  if (!x) return failure();
  int64_t size = x.dim(3), rotated = n.integer("rotary_embedding_dim", 0);
  if (rotated == 0) rotated = size;
  if (rotated < 2 || rotated > size || rotated % 2)
    return n.error() << "rotary_embedding_dim " << rotated << " is out of range for heads of " << size;
  int64_t half = rotated / 2;
  // Cosines and sines as [b, S, 1, half]: looked up by position, or given for every row.
  auto angles = [&](Tensor table) -> Tensor {
    if (n.input(3)) {
      if (table.rank() != 2) return n.error() << "the caches have two dimensions where positions are given", Tensor();
      table = e.gather(table, n.input(3), 0);
    }
    if (!table) return {};
    if (table.rank() != 3 || table.dim(1) != x.dim(1) || table.dim(2) != half)
      return n.error() << "the caches do not fit the input", Tensor();
    return e.reshape(table, {table.dim(0), table.dim(1), 1, half});
  };
  Tensor cosine = angles(n.input(1)), sine = cosine ? angles(n.input(2)) : Tensor();
  if (!sine) return failure();
  Tensor a = interleaved ? lastSlice(e, x, 0, half, 2) : lastSlice(e, x, 0, half);
  Tensor b = interleaved ? lastSlice(e, x, 1, half, 2) : lastSlice(e, x, half, half);
  Tensor real = e.binary<train::SubOp>(e.binary<train::MulOp>(a, cosine), e.binary<train::MulOp>(b, sine));
  Tensor imaginary = e.binary<train::AddOp>(e.binary<train::MulOp>(a, sine), e.binary<train::MulOp>(b, cosine));
  if (!real || !imaginary) return failure();
  Tensor result;
  if (interleaved) {
    Shape pairs(real.shape());
    pairs.push_back(1);
    result = e.concat({e.reshape(real, pairs), e.reshape(imaginary, pairs)}, 4);
    pairs.pop_back();
    pairs.back() = rotated;
    result = e.reshape(result, pairs);
  } else {
    result = e.concat({real, imaginary}, 3);
  }
  if (rotated < size) result = e.concat({result, lastSlice(e, x, rotated, size - rotated)}, 3);
  return n.set(0, flat ? e.reshape(result, n.input(0).shape()) : e.transpose(result, {0, 2, 1, 3}));
}

constexpr Operator kOperators[] = {
    {"Attention",
     23,
     0,
     3,
     attention,
     {.sample = "f[1,2,3,4], f[1,2,3,4], f[1,2,3,4]",
      .limits = "a mask of one key: opset 23 repeats it for all keys, later ones hide the other keys"}},
    {"RotaryEmbedding", 23, 0, 3, rotaryEmbedding, {.sample = "f[1,2,3,4], f[5,2], f[5,2], i[1,3]"}},
};

}  // namespace

ArrayRef<Operator> attentionOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
