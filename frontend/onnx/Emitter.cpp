#include "frontend/onnx/Emitter.h"

#include "frontend/onnx/Model.h"

using namespace mlir;

namespace sheaf::frontend {

using Shape = SmallVector<int64_t>;

namespace {

const Constant& whole(const Constant& x) {
  return x.global ? *x.global : x;
}

// A folded result, with what it would be for the whole batch where that differs but in its shape.
Constant withGlobal(Constant result, fold::Result global) {
  result.global.reset();
  if (!global || global->shape != result.shape) return result;
  global->global.reset();
  result.global = std::make_shared<const Constant>(std::move(*global));
  return result;
}

template <typename Fold, typename... Constants>
fold::Result both(Fold fold, const Constants&... operands) {
  fold::Result result = fold(operands...);
  if (!result) return result;
  bool differs = (... || bool(operands.global));
  return withGlobal(std::move(*result), differs ? fold(whole(operands)...) : fold::Result());
}

}  // namespace

int64_t Tensor::count() const {
  return elementCount(shape()).value_or(kMaxElements);
}

Value Emitter::materialize(const Tensor& x) {
  if (!x.constant()) return x.value();
  const Constant& c = *x.constant();
  auto& known = stored[c.data.get()];
  llvm::erase_if(known, [](const Materialized& m) { return m.data.expired(); });
  Value value;
  for (const Materialized& m : known)
    if (m.stored == c.stored && (m.shape == c.shape || !c.isSplat()) && m.type == c.type) value = m.value;
  if (!value) {
    DenseElementsAttr attribute = c.attribute();
    Value& cached = constants[attribute];
    if (!cached) cached = train::ConstantOp::create(builder, loc, attribute);
    value = cached;
    known.push_back({c.data, c.stored, c.shape, c.type, value});
  }
  auto full = type(c.shape, c.type);
  return value.getType() == full ? value : train::BroadcastOp::create(builder, loc, full, value);
}

Tensor Emitter::sizes(ArrayRef<int64_t> values, ArrayRef<int64_t> global) {
  Constant local = fold::integers(builder.getI64Type(), {int64_t(values.size())}, values.vec());
  if (values == global) return local;
  return withGlobal(local, fold::integers(builder.getI64Type(), {int64_t(global.size())}, global.vec()));
}

Tensor Emitter::integers(ArrayRef<int64_t> values) {
  return fold::integers(builder.getI64Type(), {int64_t(values.size())}, values.vec());
}

bool Emitter::checkShape(ArrayRef<int64_t> shape) {
  if (elementCount(shape)) return true;
  error() << "a tensor of this size is out of range";
  return false;
}

bool Emitter::checkAxis(int64_t& axis, int64_t rank) {
  if (axis >= -rank && axis < rank) {
    if (axis < 0) axis += rank;
    return true;
  }
  error() << "axis " << axis << " is out of range for rank " << rank;
  return false;
}

static std::string text(ArrayRef<int64_t> shape) {
  std::string result;
  for (int64_t d : shape) result += (result.empty() ? "" : "x") + std::to_string(d);
  return "[" + result + "]";
}

std::optional<Shape> Emitter::broadcastShape(ArrayRef<Tensor> operands) {
  Shape shape;
  for (const Tensor& x : operands) {
    if (!x) return std::nullopt;
    if (x.rank() > int64_t(shape.size())) shape.insert(shape.begin(), x.rank() - shape.size(), 1);
  }
  for (const Tensor& x : operands)
    for (int64_t d = 0, shift = shape.size() - x.rank(); d < x.rank(); ++d) {
      int64_t& size = shape[shift + d];
      if (size != 1 && x.dim(d) != 1 && size != x.dim(d)) {
        auto diagnostic = error() << "shapes";
        for (const Tensor& y : operands) diagnostic << " " << text(y.shape());
        diagnostic << " do not broadcast together";
        return std::nullopt;
      }
      if (size == 1) size = x.dim(d);
    }
  if (!checkShape(shape)) return std::nullopt;
  return shape;
}

Tensor Emitter::expand(const Tensor& x, ArrayRef<int64_t> shape) {
  if (!x || x.shape() == shape) return x;
  Shape aligned(shape.size() - std::min<size_t>(x.rank(), shape.size()), 1);
  llvm::append_range(aligned, x.shape());
  bool fits = aligned.size() == shape.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) fits = aligned[d] == 1 || aligned[d] == shape[d];
  if (!fits) return error() << "cannot broadcast " << text(x.shape()) << " to " << text(shape), Tensor();
  if (!checkShape(shape)) return {};
  Tensor same = reshape(x, aligned);
  if (!same || same.shape() == shape) return same;
  if (same.constant())
    if (auto folded = both([&](const Constant& c) { return fold::broadcast(c, shape); }, *same.constant()))
      return *folded;
  return Value(train::BroadcastOp::create(builder, loc, type(shape, x.elementType()), materialize(same)));
}

Tensor Emitter::unary(Unary op, const Tensor& x) {
  if (!x) return {};
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::unary(op, c); }, *x.constant())) return *folded;
  bool integral = op == Unary::Neg || op == Unary::Abs || op == Unary::Sign || op == Unary::Relu;
  if (!x.isFloat() && (!integral || x.isBool()))
    return error() << "elements of type " << x.elementType() << " are not supported here", Tensor();
  Value v = materialize(x);
  switch (op) {
#define SHEAF_CASE(name) \
  case Unary::name:      \
    return Value(train::name##Op::create(builder, loc, v.getType(), v));
    SHEAF_UNARY_OPS(SHEAF_CASE)
#undef SHEAF_CASE
  }
  return {};
}

Tensor Emitter::binary(Binary op, Tensor x, Tensor y) {
  auto shape = broadcastShape({x, y});
  if (!shape) return {};
  if (x.elementType() != y.elementType())
    return error() << "operands have different element types " << x.elementType() << " and " << y.elementType(),
           Tensor();
  bool logical = op == Binary::And || op == Binary::Or || op == Binary::Xor;
  if (logical != x.isBool())
    return error() << "elements of type " << x.elementType() << " are not supported here", Tensor();
  x = expand(x, *shape);
  y = expand(y, *shape);
  if (!x || !y) return {};
  if (x.constant() && y.constant())
    if (auto folded = both([&](const Constant& a, const Constant& b) { return fold::binary(op, a, b); }, *x.constant(),
                           *y.constant()))
      return *folded;
  Value a = materialize(x), b = materialize(y);
  switch (op) {
#define SHEAF_CASE(name) \
  case Binary::name:     \
    return Value(train::name##Op::create(builder, loc, a.getType(), a, b));
    SHEAF_CASE(Add)
    SHEAF_CASE(Sub)
    SHEAF_CASE(Mul)
    SHEAF_CASE(Div)
    SHEAF_CASE(Pow)
    SHEAF_CASE(Min)
    SHEAF_CASE(Max)
    SHEAF_CASE(And)
    SHEAF_CASE(Or)
    SHEAF_CASE(Xor)
#undef SHEAF_CASE
    case Binary::Mod:
    case Binary::Fmod:
      return Value(train::ModOp::create(builder, loc, a.getType(), a, b, op == Binary::Fmod));
  }
  return {};
}

Tensor Emitter::compare(train::ComparePredicate predicate, Tensor x, Tensor y) {
  auto shape = broadcastShape({x, y});
  if (!shape) return {};
  if (x.elementType() != y.elementType())
    return error() << "operands have different element types " << x.elementType() << " and " << y.elementType(),
           Tensor();
  x = expand(x, *shape);
  y = expand(y, *shape);
  if (!x || !y) return {};
  if (x.constant() && y.constant())
    if (auto folded = both([&](const Constant& a, const Constant& b) { return fold::compare(predicate, a, b); },
                           *x.constant(), *y.constant()))
      return *folded;
  Value a = materialize(x), b = materialize(y);
  return Value(train::CompareOp::create(builder, loc, predicate, a, b));
}

Tensor Emitter::select(Tensor condition, Tensor x, Tensor y) {
  auto shape = broadcastShape({condition, x, y});
  if (!shape) return {};
  if (!condition.isBool() || x.elementType() != y.elementType())
    return error() << "takes a boolean condition and two tensors of the same element type", Tensor();
  condition = expand(condition, *shape);
  x = expand(x, *shape);
  y = expand(y, *shape);
  if (!condition || !x || !y) return {};
  if (condition.constant() && condition.constant()->isSplat()) return condition.constant()->splatValue() ? x : y;
  if (condition.constant() && x.constant() && y.constant())
    if (auto folded =
            both([&](const Constant& c, const Constant& a, const Constant& b) { return fold::select(c, a, b); },
                 *condition.constant(), *x.constant(), *y.constant()))
      return *folded;
  Value c = materialize(condition), a = materialize(x), b = materialize(y);
  return Value(train::SelectOp::create(builder, loc, a.getType(), c, a, b));
}

Tensor Emitter::logicalNot(const Tensor& x) {
  if (!x) return {};
  if (!x.isBool()) return error() << "takes booleans", Tensor();
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::logicalNot(c); }, *x.constant())) return *folded;
  Value v = materialize(x);
  return Value(train::NotOp::create(builder, loc, v.getType(), v));
}

Tensor Emitter::isNan(const Tensor& x) {
  if (!x) return {};
  if (!x.isFloat()) return error() << "takes floating-point numbers", Tensor();
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::isNan(c); }, *x.constant())) return *folded;
  return Value(train::IsNanOp::create(builder, loc, materialize(x)));
}

Tensor Emitter::cast(const Tensor& x, Type to) {
  if (!x || x.elementType() == to) return x;
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::cast(c, to); }, *x.constant()))
      return isa<FloatType>(to) ? whole(*folded) : *folded;
  return Value(train::CastOp::create(builder, loc, type(x.shape(), to), materialize(x)));
}

Tensor Emitter::gelu(const Tensor& x, bool approximate) {
  if (!x) return {};
  if (!x.isFloat()) return error() << "takes floating-point numbers", Tensor();
  Value v = materialize(x);
  return Value(train::GeluOp::create(builder, loc, v.getType(), v, approximate));
}

Tensor Emitter::iota(Type element, ArrayRef<int64_t> shape, int64_t axis) {
  if (!checkShape(shape)) return {};
  Shape line(shape.size(), 1);
  line[axis] = shape[axis];
  if (auto folded = fold::iota(element, shape[axis], 0, 1)) return expand(reshape(*folded, line), shape);
  return Value(train::IotaOp::create(builder, loc, type(shape, element), builder.getI64IntegerAttr(axis)));
}

Tensor Emitter::reshape(const Tensor& x, ArrayRef<int64_t> shape) {
  if (!x || x.shape() == shape) return x;
  if (!checkShape(shape)) return {};
  if (*elementCount(shape) != x.count())
    return error() << "cannot reshape " << text(x.shape()) << " to " << text(shape), Tensor();
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::reshape(c, shape); }, *x.constant())) return *folded;
  Value from = materialize(x);
  // A chain of reshapes is its last one.
  while (auto inner = from.getDefiningOp<train::ReshapeOp>()) from = inner.getOperand();
  auto to = type(shape, x.elementType());
  return from.getType() == to ? from : Value(train::ReshapeOp::create(builder, loc, to, from));
}

Tensor Emitter::transpose(const Tensor& x, ArrayRef<int64_t> permutation) {
  if (!x) return {};
  Shape from(permutation);
  SmallVector<bool> seen(x.rank());
  bool valid = int64_t(permutation.size()) == x.rank();
  for (int64_t p : permutation) {
    valid = valid && p >= 0 && p < x.rank() && !seen[p];
    if (valid) seen[p] = true;
  }
  if (!valid) return error() << "perm must name every dimension once", Tensor();
  if (llvm::is_sorted(from)) return x;
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::transpose(c, from); }, *x.constant())) return *folded;
  Value v = materialize(x);
  // A chain of transpositions is one.
  if (auto inner = v.getDefiningOp<train::TransposeOp>()) {
    for (int64_t& p : from) p = inner.getPermutation()[p];
    v = inner.getOperand();
    if (llvm::is_sorted(from)) return v;
  }
  return Value(train::TransposeOp::create(builder, loc, v, from));
}

Tensor Emitter::slice(const Tensor& x, ArrayRef<int64_t> starts, ArrayRef<int64_t> sizes, ArrayRef<int64_t> steps) {
  if (!x) return {};
  bool whole = x.shape() == sizes && llvm::all_of(starts, [](int64_t s) { return s == 0; }) &&
               llvm::all_of(steps, [](int64_t s) { return s == 1; });
  if (whole) return x;
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::slice(c, starts, sizes, steps); }, *x.constant()))
      return *folded;
  return Value(train::SliceOp::create(builder, loc, materialize(x), starts, sizes, steps));
}

Tensor Emitter::pad(const Tensor& x, ArrayRef<int64_t> low, ArrayRef<int64_t> high) {
  if (!x) return {};
  Shape shape(x.shape());
  for (size_t d = 0; d < shape.size(); ++d) shape[d] += low[d] + high[d];
  if (!checkShape(shape)) return {};
  if (x.shape() == ArrayRef<int64_t>(shape)) return x;
  if (!x.constant())
    return Value(train::PadOp::create(builder, loc, materialize(x), low, high, Shape(shape.size(), 0)));
  Tensor result = x;
  for (int64_t d = 0; d < x.rank() && result; ++d)
    for (bool before : {true, false}) {
      Shape zeros(result.shape());
      zeros[d] = before ? low[d] : high[d];
      Tensor zero = splat(x.elementType(), zeros, 0);
      if (zeros[d]) result = before ? concat({zero, result}, d) : concat({result, zero}, d);
    }
  return result;
}

Tensor Emitter::concat(ArrayRef<Tensor> operands, int64_t axis) {
  SmallVector<Tensor> parts;
  for (const Tensor& x : operands) {
    if (!x) return {};
    bool fits = x.rank() == operands[0].rank() && x.elementType() == operands[0].elementType();
    for (int64_t d = 0; fits && d < x.rank(); ++d) fits = d == axis || x.dim(d) == operands[0].dim(d);
    if (!fits) return error() << "operands must agree in element type and in shape but along the axis", Tensor();
    if (x.dim(axis)) parts.push_back(x);
  }
  if (parts.empty()) return operands[0];
  if (parts.size() == 1) return parts[0];
  Shape shape(parts[0].shape());
  shape[axis] = 0;
  SmallVector<Constant> known;
  for (const Tensor& x : parts) {
    shape[axis] += x.dim(axis);
    if (x.constant()) known.push_back(*x.constant());
  }
  if (!checkShape(shape)) return {};
  if (known.size() == parts.size())
    if (auto folded = fold::concat(known, axis)) {
      bool differs = llvm::any_of(known, [](const Constant& x) { return bool(x.global); });
      SmallVector<Constant> all;
      for (const Constant& x : known) all.push_back(whole(x));
      return withGlobal(*folded, differs ? fold::concat(all, axis) : fold::Result());
    }
  SmallVector<Value> values;
  for (const Tensor& x : parts) values.push_back(materialize(x));
  return Value(train::ConcatOp::create(builder, loc, values, axis));
}

Tensor Emitter::gather(const Tensor& data, Tensor indices, int64_t axis) {
  if (!data || !indices) return {};
  if (indices.isFloat() || indices.isBool()) return error() << "indices must be integers", Tensor();
  Shape shape(data.shape().take_front(axis));
  llvm::append_range(shape, indices.shape());
  llvm::append_range(shape, data.shape().drop_front(axis + 1));
  if (!checkShape(shape)) return {};
  if (indices.constant()) {
    const Constant& known = *indices.constant();
    bool one = known.isSplat();
    for (int64_t i : one ? std::vector<int64_t>{known.splatInteger()} : known.integers())
      if (i < -data.dim(axis) || i >= data.dim(axis))
        return error() << "index " << i << " is out of range for dimension " << axis << " of " << text(data.shape()),
               Tensor();
    if (data.constant())
      if (auto folded = both([&](const Constant& d, const Constant& i) { return fold::gather(d, i, axis); },
                             *data.constant(), *indices.constant()))
        return *folded;
    // One index is a slice: no scatter in its gradient.
    if (indices.count() == 1 && axis < data.rank()) {
      int64_t at = known.splatInteger();
      Shape starts(data.rank(), 0), sizes(data.shape()), steps(data.rank(), 1);
      starts[axis] = at < 0 ? at + data.dim(axis) : at;
      sizes[axis] = 1;
      return reshape(slice(data, starts, sizes, steps), shape);
    }
  }
  if (!indices.elementType().isInteger(32) && !indices.elementType().isInteger(64))
    indices = cast(indices, builder.getI64Type());
  return Value(train::GatherOp::create(builder, loc, materialize(data), materialize(indices), axis));
}

Tensor Emitter::cumsum(const Tensor& x, int64_t axis, bool exclusive, bool reverse) {
  if (!x) return {};
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::cumsum(c, axis, exclusive, reverse); }, *x.constant()))
      return *folded;
  Value v = materialize(x);
  return Value(train::CumSumOp::create(builder, loc, v.getType(), v, axis, exclusive, reverse));
}

Tensor Emitter::reduce(train::ReduceKind kind, const Tensor& x, ArrayRef<int64_t> axes) {
  if (!x) return {};
  if (x.isBool()) return error() << "booleans are not supported here", Tensor();
  bool changes = llvm::any_of(axes, [&](int64_t axis) { return x.dim(axis) != 1; });
  if (!changes && (x.constant() || axes.empty() || !oneRow)) return x;
  if (x.constant())
    if (auto folded = both([&](const Constant& c) { return fold::reduce(kind, c, axes); }, *x.constant()))
      return *folded;
  return Value(train::ReduceOp::create(builder, loc, kind, materialize(x), axes));
}

// The operand of a matrix product; a transposition of its last two dimensions becomes the flag.
Value Emitter::matrixOperand(const Tensor& x, bool& transposed) {
  Value v = materialize(x);
  auto op = v.getDefiningOp<train::TransposeOp>();
  int64_t rank = x.rank();
  if (!op || op.getPermutation()[rank - 2] != rank - 1) return v;
  // Swapped back, the last dimension stays last: at worst whole rows move.
  Shape permutation(op.getPermutation());
  std::swap(permutation[rank - 2], permutation[rank - 1]);
  transposed = !transposed;
  return materialize(transpose(op.getOperand(), permutation));
}

Tensor Emitter::matmul(const Tensor& x, const Tensor& y, bool transposeX, bool transposeY) {
  if (!x || !y) return {};
  if (!x.isFloat() || x.elementType() != y.elementType())
    return error() << "takes floating-point numbers of one type", Tensor();
  if (x.rank() == 0 || y.rank() == 0) return error() << "operands must have at least one dimension", Tensor();
  // Vectors become matrices, as numpy does, and lose the dimension again.
  if (x.rank() == 1) {
    Tensor r = matmul(reshape(x, {1, x.dim(0)}), y, false, transposeY);
    if (!r) return {};
    Shape shape(r.shape());
    shape.erase(shape.end() - (y.rank() == 1 ? 1 : 2));
    return reshape(r, shape);
  }
  if (y.rank() == 1) {
    Tensor r = matmul(x, reshape(y, {y.dim(0), 1}), transposeX, false);
    return r ? reshape(r, r.shape().drop_back()) : Tensor();
  }
  int64_t m = x.dim(x.rank() - (transposeX ? 1 : 2)), k = x.dim(x.rank() - (transposeX ? 2 : 1));
  int64_t l = y.dim(y.rank() - (transposeY ? 1 : 2)), n = y.dim(y.rank() - (transposeY ? 2 : 1));
  if (k != l)
    return error() << "inner dimensions of " << text(x.shape()) << " and " << text(y.shape()) << " differ", Tensor();
  auto multiply = [&](Value a, bool ta, Value b, bool tb) -> Tensor {
    return Value(train::MatMulOp::create(builder, loc, a, b, ta, tb));
  };
  if (y.rank() == 2 && (x.rank() == 2 || !transposeX)) {
    // All leading dimensions of x are rows of one matrix.
    Shape shape(x.shape().drop_back(x.rank() == 2 ? 2 : 1));
    if (x.rank() == 2) shape.push_back(m);
    shape.push_back(n);
    if (!checkShape(shape)) return {};
    Tensor rows = x.rank() == 2 ? x : reshape(x, {k ? x.count() / k : 0, k});
    if (!rows) return {};
    Value a = matrixOperand(rows, transposeX), b = matrixOperand(y, transposeY);
    return reshape(multiply(a, transposeX, b, transposeY), shape);
  }
  Shape leading(x.shape().drop_back(2)), other(y.shape().drop_back(2));
  auto batch = broadcastShape({splat(builder.getI64Type(), leading, 0), splat(builder.getI64Type(), other, 0)});
  if (!batch) return {};
  Shape shape = *batch;
  shape.append({m, n});
  if (!checkShape(shape)) return {};
  int64_t count = *elementCount(*batch);
  auto operand = [&](const Tensor& t, bool& transposed) -> Value {
    Shape full = *batch;
    full.append({t.dim(t.rank() - 2), t.dim(t.rank() - 1)});
    Tensor whole = expand(t, full);
    if (!whole) return {};
    Value v = matrixOperand(whole, transposed);
    auto dims = mlir::cast<RankedTensorType>(v.getType()).getShape().take_back(2);
    return materialize(reshape(v, {count, dims[0], dims[1]}));
  };
  Value a = operand(x, transposeX), b = operand(y, transposeY);
  if (!a || !b) return {};
  return reshape(multiply(a, transposeX, b, transposeY), shape);
}

Tensor Emitter::softmax(const Tensor& x, int64_t axis, bool logarithm) {
  if (!x) return {};
  if (!x.isFloat()) return error() << "takes floating-point numbers", Tensor();
  Shape permutation;
  for (int64_t d = 0; d < x.rank(); ++d) permutation.push_back(d);
  if (x.rank() == 0) return splatLike(x, logarithm ? 0 : 1);
  std::swap(permutation[axis], permutation.back());
  Value v = materialize(transpose(x, permutation));
  Value result = logarithm ? Value(train::LogSoftmaxOp::create(builder, loc, v.getType(), v))
                           : Value(train::SoftmaxOp::create(builder, loc, v.getType(), v));
  return transpose(result, permutation);
}

}  // namespace sheaf::frontend
