// Attention and rotary position embedding.
#include <cmath>

#include "frontend/onnx/Importer.h"

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

// The mask as summands [b, h, S, T]: booleans say what is seen.
Tensor additiveMask(Node& n, Tensor mask, Type element, int64_t rows, int64_t columns) {
  Emitter& e = n.emit;
  if (mask.isBool()) mask = e.select(mask, e.splat(element, {}, 0), e.splat(element, {}, -INFINITY));
  if (!mask) return {};
  if (mask.rank() > 4 || mask.elementType() != element)
    return n.error() << "the mask must be boolean or of the query's element type, with at most four dimensions",
           Tensor();
  Shape shape(4 - mask.rank(), 1);
  llvm::append_range(shape, mask.shape());
  Tensor aligned = e.reshape(mask, shape);
  shape[2] = rows;
  shape[3] = columns;
  return e.expand(aligned, shape);
}

// Later opsets add attributes that change the result.
constexpr StringRef kAttentionAttributes[] = {"is_causal", "kv_num_heads", "q_num_heads",      "qk_matmul_output_mode",
                                              "scale",     "softcap",      "softmax_precision"};

LogicalResult attention(Node& n) {
  Emitter& e = n.emit;
  Tensor q = n.input(0), k = n.input(1), v = n.input(2);
  if (n.input(4) || n.input(5) || n.input(6)) return n.error() << "past keys and values are not supported";
  if (n.uses(1) || n.uses(2) || n.uses(3)) return n.error() << "only the first output is supported";
  for (const onnx::AttributeProto& a : n.proto.attribute())
    if (!llvm::is_contained(kAttentionAttributes, a.name()))
      return n.error() << "the attribute " << a.name() << " is not supported";
  if (n.number("softcap", 0) != 0) return n.error() << "softcap is not supported";
  if (!q.isFloat() || q.elementType() != k.elementType() || q.elementType() != v.elementType())
    return n.error() << "takes floating-point numbers of one type";
  bool flat = q.rank() == 3;
  int64_t heads = n.integer("q_num_heads", 0), groups = n.integer("kv_num_heads", heads);
  q = headsLast(n, q, heads), k = headsLast(n, k, groups), v = headsLast(n, v, groups);
  if (!q || !k || !v) return failure();
  if (q.dim(0) != k.dim(0) || k.dim(0) != v.dim(0) || k.dim(1) != v.dim(1) || k.dim(2) != v.dim(2) ||
      q.dim(3) != k.dim(3) || k.dim(2) == 0 || q.dim(2) % k.dim(2))
    return n.error() << "the shapes of query, key and value do not fit";
  bool causal = n.integer("is_causal", 0);
  Tensor mask = n.input(3);
  if (mask && !(mask = additiveMask(n, mask, q.elementType(), q.dim(1), k.dim(1)))) return failure();
  if (causal && q.dim(1) != k.dim(1)) {
    // Query i sees keys 0 to i, while train.attention counts from the last query and the last key.
    Shape square{q.dim(1), k.dim(1)};
    Tensor column = e.iota(e.ops().getI64Type(), square, 1), row = e.iota(e.ops().getI64Type(), square, 0);
    Tensor seen = e.compare(train::ComparePredicate::le, column, row);
    Tensor lower = seen ? additiveMask(n, seen, q.elementType(), q.dim(1), k.dim(1)) : Tensor();
    if (!lower || !(mask = mask ? e.binary<train::AddOp>(mask, lower) : lower)) return failure();
    causal = false;
  }
  if (mask && ((mask.dim(0) != 1 && mask.dim(0) != q.dim(0)) || (mask.dim(1) != 1 && mask.dim(1) != q.dim(2))))
    return n.error() << "the mask does not broadcast to [batch, heads, queries, keys]";
  double scale = n.number("scale", 1 / std::sqrt(double(std::max<int64_t>(q.dim(3), 1))));
  Value query = e.materialize(q), key = e.materialize(k), value = e.materialize(v);
  auto op = train::AttentionOp::create(e.ops(), e.location(), query, key, value, mask ? e.materialize(mask) : Value(),
                                       e.ops().getF64FloatAttr(scale), causal ? e.ops().getUnitAttr() : UnitAttr(),
                                       IntegerAttr());
  Tensor result = Value(op.getResult());
  if (flat) return n.set(0, e.reshape(result, {result.dim(0), result.dim(1), result.dim(2) * result.dim(3)}));
  return n.set(0, e.transpose(result, {0, 2, 1, 3}));
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
    {"Attention", 23, 0, 3, attention},
    {"RotaryEmbedding", 23, 0, 3, rotaryEmbedding},
};

}  // namespace

ArrayRef<Operator> attentionOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
