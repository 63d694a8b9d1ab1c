#include "frontend/onnx/importer/Emitter.h"

#include <cmath>

#include "frontend/onnx/importer/Model.h"
#include "ir/Train/StopGradient.h"

using namespace mlir;

namespace sheaf::frontend {

using Shape = SmallVector<int64_t>;

// Bytes of what is evaluated without a look at the memory that attributes take.
constexpr int64_t kSmall = 1 << 16;

int64_t Tensor::count() const {
  return elementCount(shape()).value_or(kMaxGlobalElements);
}

int64_t Tensor::storedCount() const {
  return known ? elementCount(known->stored).value_or(0) : 0;
}

Value Emitter::materialize(const Tensor& x) {
  if (!x.constant()) return x.value();
  const Constant& c = *x.constant();
  auto& known = materialized[c.data.get()];
  llvm::erase_if(known, [](const Materialized& m) { return m.data.expired(); });
  Value value;
  for (const Materialized& m : known)
    if (m.stored == c.stored && (m.type == c.type || (!c.isSplat() && m.type.getElementType() == c.element())))
      value = m.value;
  if (!value) {
    DenseElementsAttr attribute = c.attribute();
    Value& cached = constants[attribute];
    if (!cached) cached = train::ConstantOp::create(builder, loc, attribute);
    value = cached;
    known.push_back({c.data, c.stored, c.type, value});
  }
  return value.getType() == c.type ? value : train::BroadcastOp::create(builder, loc, c.type, value);
}

Tensor Emitter::apply(ArrayRef<Tensor> operands, Create create) {
  for (const Tensor& x : operands)
    if (!x) return {};
  if (llvm::all_of(operands, [](const Tensor& x) { return x.constant(); })) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToEnd(&scratch);
    SmallVector<Value> values;
    for (const Tensor& x : operands) values.push_back(scratch.addArgument(x.type(), loc));
    Operation* op = create(values);
    Tensor result = evaluate(op, operands);
    op->erase();
    scratch.eraseArguments(0, scratch.getNumArguments());
    if (result) return result;
  }
  SmallVector<Value> values;
  for (const Tensor& x : operands) values.push_back(materialize(x));
  Operation* op = create(values);
  const Value result = op->getResult(0);
  const auto type = llvm::cast<RankedTensorType>(result.getType());
  if (type.getNumElements() > 0) return result;
  // A result without elements depends on nothing: the passes meet it as a constant only.
  op->erase();
  return splat(type.getElementType(), type.getShape(), 0);
}

Tensor Emitter::evaluate(Operation* op, ArrayRef<Tensor> operands) {
  SmallVector<Constant> constants;
  for (const Tensor& x : operands) constants.push_back(*x.constant());
  train::ConstantEvaluation evaluation(op, constants);
  // A constant that an op takes is copied into an attribute, which lives as long as the context.
  int64_t attributes = 0;
  if (evaluation.bytes() > kSmall)
    for (auto& [attribute, value] : this->constants)
      attributes += int64_t(mlir::cast<DenseElementsAttr>(attribute).getRawData().size());
  if (evaluation.elements() > kMaxFolded || 2 * Constant::liveBytes() + attributes + evaluation.bytes() > kMaxBytes)
    return {};
  // Rows compared with columns: a mask, which is better left to the analysis of masks where it is large.
  auto grows = [&](const Constant& x) { return ArrayRef<int64_t>(x.stored) != evaluation.stored(); };
  if (isa<train::CompareOp>(op) && evaluation.elements() > kMaxMask && llvm::all_of(constants, grows)) return {};
  // Columns of indices, of rows and of positions in them: each is small by itself, and slice() gives it back.
  if (isa<train::ConcatOp>(op) && evaluation.elements() > kMaxJoined) {
    int64_t stored = 0;
    for (const Tensor& x : operands) stored += x.storedCount();
    if (evaluation.elements() > 2 * stored) return {};
  }
  // What has no value is left to be computed, as if the operands were data.
  ScopedDiagnosticHandler quiet(op->getContext(), [](Diagnostic&) { return success(); });
  auto result = evaluation.run();
  return failed(result) ? Tensor() : Tensor(result->front());
}

Tensor Emitter::integers(ArrayRef<int64_t> values) {
  return Constant::integers(type({int64_t(values.size())}, builder.getI64Type()), values);
}

Tensor Emitter::floats(Type element, ArrayRef<int64_t> shape, ArrayRef<double> values) {
  StringRef bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  return cast(*Constant::fromBytes(type(shape, builder.getF64Type()), bytes), element);
}

bool Emitter::checkRank(int64_t rank) {
  if (rank <= kMaxRank) return true;
  error() << "a tensor of " << rank << " dimensions is out of range; at most " << kMaxRank << " are supported";
  return false;
}

bool Emitter::checkShape(ArrayRef<int64_t> shape) {
  if (elementCount(shape)) return true;
  if (checkRank(shape.size())) error() << "a tensor of this size is out of range";
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

static std::string text(Type type) {
  std::string result;
  llvm::raw_string_ostream(result) << type;
  return result;
}

bool Emitter::checkIndices(const Tensor& indices, ArrayRef<int64_t> shape, int64_t axis) {
  if (!indices.constant() || indices.count() == 0) return true;
  for (int64_t i : indices.constant()->storedElements().i)
    if (i < -shape[axis] || i >= shape[axis]) {
      error() << "index " << i << " is out of range for dimension " << axis << " of " << text(shape);
      return false;
    }
  return true;
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
        std::string shapes;
        for (const Tensor& y : operands) shapes += " " + text(y.shape());
        mismatch("shapes" + shapes + " do not broadcast together");
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
  if (!fits) return mismatch("cannot broadcast " + text(x.shape()) + " to " + text(shape)), Tensor();
  if (!checkShape(shape)) return {};
  Tensor same = reshape(x, aligned);
  if (!same || same.shape() == shape) return same;
  return apply({same},
               [&](ValueRange v) { return train::BroadcastOp::create(builder, loc, type(shape, x.elementType()), v); });
}

bool Emitter::checkAccepted(const Tensor& x, Accepts accepts) {
  if (accepts(x.elementType())) return true;
  error() << "elements of type " << x.elementType() << " are not supported here";
  return false;
}

bool Emitter::checkSameType(const Tensor& x, const Tensor& y) {
  if (x.elementType() == y.elementType()) return true;
  mismatch("operands have different element types " + text(x.elementType()) + " and " + text(y.elementType()));
  return false;
}

Tensor Emitter::unary(const Tensor& x, Accepts accepts, Create create) {
  if (!x) return {};
  if (!checkAccepted(x, accepts)) return {};
  return apply({x}, create);
}

Tensor Emitter::binary(const Tensor& x, const Tensor& y, Accepts accepts, Create create) {
  auto shape = broadcastShape({x, y});
  if (!shape) return {};
  if (!checkSameType(x, y)) return {};
  if (!checkAccepted(x, accepts)) return {};
  return apply({expand(x, *shape), expand(y, *shape)}, create);
}

Tensor Emitter::mod(const Tensor& x, const Tensor& y, bool fmod) {
  return binary(x, y, train::ModOp::accepts,
                [&](ValueRange v) { return train::ModOp::create(builder, loc, v[0].getType(), v[0], v[1], fmod); });
}

Tensor Emitter::compare(train::ComparePredicate predicate, Tensor x, Tensor y) {
  auto shape = broadcastShape({x, y});
  if (!shape) return {};
  if (!checkSameType(x, y)) return {};
  return apply({expand(x, *shape), expand(y, *shape)},
               [&](ValueRange v) { return train::CompareOp::create(builder, loc, predicate, v[0], v[1]); });
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
  if (condition.constant() && condition.constant()->isSplat()) return condition.constant()->splatInteger() ? x : y;
  return apply({condition, x, y},
               [&](ValueRange v) { return train::SelectOp::create(builder, loc, v[1].getType(), v[0], v[1], v[2]); });
}

Tensor Emitter::cast(const Tensor& x, Type to) {
  if (!x || x.elementType() == to) return x;
  return apply({x}, [&](ValueRange v) { return train::CastOp::create(builder, loc, type(x.shape(), to), v[0]); });
}

Tensor Emitter::atLeastF32(const Tensor& x) {
  return x && (x.elementType().isF16() || x.elementType().isBF16()) ? cast(x, builder.getF32Type()) : x;
}

Tensor Emitter::stopGradient(const Tensor& x) {
  if (!x || x.constant() || !x.isFloat()) return x;
  return mlir::Value(train::StopGradientOp::create(builder, loc, x.value()));
}

Tensor Emitter::gelu(const Tensor& x, bool approximate) {
  if (!x) return {};
  if (!x.isFloat()) return error() << "takes floating-point numbers", Tensor();
  return apply({x},
               [&](ValueRange v) { return train::GeluOp::create(builder, loc, v[0].getType(), v[0], approximate); });
}

Tensor Emitter::iota(Type element, ArrayRef<int64_t> shape, int64_t axis) {
  if (!checkShape(shape)) return {};
  return apply({}, [&](ValueRange) {
    return train::IotaOp::create(builder, loc, type(shape, element), builder.getI64IntegerAttr(axis));
  });
}

Tensor Emitter::reshape(const Tensor& x, ArrayRef<int64_t> shape) {
  if (!x || x.shape() == shape) return x;
  if (!checkShape(shape)) return {};
  if (*elementCount(shape) != x.count())
    return mismatch("cannot reshape " + text(x.shape()) + " to " + text(shape)), Tensor();
  auto to = type(shape, x.elementType());
  Tensor from = x;
  // A chain of reshapes is its last one.
  while (auto inner = from.value() ? from.value().getDefiningOp<train::ReshapeOp>() : train::ReshapeOp())
    from = inner.getOperand();
  if (from.type() == to) return from;
  return apply({from}, [&](ValueRange v) { return train::ReshapeOp::create(builder, loc, to, v[0]); });
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
  Tensor operand = x;
  // A chain of transpositions is one.
  if (auto inner = x.value() ? x.value().getDefiningOp<train::TransposeOp>() : train::TransposeOp()) {
    for (int64_t& p : from) p = inner.getPermutation()[p];
    operand = inner.getOperand();
    if (llvm::is_sorted(from)) return operand;
  }
  return apply({operand}, [&](ValueRange v) { return train::TransposeOp::create(builder, loc, v[0], from); });
}

// The slice of a concatenation that lies in one operand, if that is known, or holds indices: columns of them may be
// rows and positions in rows.
Tensor Emitter::partOfConcat(const Tensor& x, ArrayRef<int64_t> starts, ArrayRef<int64_t> sizes,
                             ArrayRef<int64_t> steps) {
  auto concat = x.value() ? x.value().getDefiningOp<train::ConcatOp>() : train::ConcatOp();
  if (!concat) return {};
  const int64_t axis = concat.getAxis(), last = starts[axis] + (sizes[axis] - 1) * steps[axis];
  int64_t offset = 0;
  for (Value operand : concat.getOperands()) {
    const int64_t size = mlir::cast<RankedTensorType>(operand.getType()).getDimSize(axis);
    if (std::min(starts[axis], last) >= offset && std::max(starts[axis], last) < offset + size) {
      std::optional<Constant> known = train::knownConstant(operand);
      Shape shifted(starts);
      shifted[axis] -= offset;
      if (!known && !mlir::isa<IntegerType>(x.elementType())) return {};
      return slice(known ? Tensor(*known) : Tensor(operand), shifted, sizes, steps);
    }
    offset += size;
  }
  return {};
}

Tensor Emitter::slice(const Tensor& x, ArrayRef<int64_t> starts, ArrayRef<int64_t> sizes, ArrayRef<int64_t> steps) {
  if (!x) return {};
  bool whole = x.shape() == sizes && llvm::all_of(starts, [](int64_t s) { return s == 0; }) &&
               llvm::all_of(steps, [](int64_t s) { return s == 1; });
  if (whole) return x;
  if (Tensor part = partOfConcat(x, starts, sizes, steps)) return part;
  return apply({x}, [&](ValueRange v) { return train::SliceOp::create(builder, loc, v[0], starts, sizes, steps); });
}

Tensor Emitter::sliceAlong(const Tensor& x, int64_t axis, int64_t start, int64_t size, int64_t step) {
  if (!x) return {};
  Shape starts(x.rank(), 0), sizes(x.shape()), steps(x.rank(), 1);
  starts[axis] = start;
  sizes[axis] = size;
  steps[axis] = size > 1 ? step : 1;
  return slice(x, starts, sizes, steps);
}

Tensor Emitter::pad(const Tensor& x, ArrayRef<int64_t> low, ArrayRef<int64_t> high, ArrayRef<int64_t> interior) {
  if (!x) return {};
  Shape shape(x.shape()), between(interior);
  between.resize(shape.size(), 0);
  for (size_t d = 0; d < shape.size(); ++d)
    shape[d] += low[d] + high[d] + std::max<int64_t>(shape[d] - 1, 0) * between[d];
  if (!checkShape(shape)) return {};
  if (x.shape() == ArrayRef<int64_t>(shape)) return x;
  return apply({x}, [&](ValueRange v) { return train::PadOp::create(builder, loc, v[0], low, high, between); });
}

Tensor Emitter::concat(ArrayRef<Tensor> operands, int64_t axis) {
  SmallVector<Tensor> parts;
  for (const Tensor& x : operands) {
    if (!x) return {};
    bool fits = x.rank() == operands[0].rank() && x.elementType() == operands[0].elementType();
    for (int64_t d = 0; fits && d < x.rank(); ++d) fits = d == axis || x.dim(d) == operands[0].dim(d);
    if (!fits) return mismatch("operands must agree in element type and in shape but along the axis"), Tensor();
    if (x.dim(axis)) parts.push_back(x);
  }
  if (parts.size() <= 1) return parts.empty() ? operands[0] : parts[0];
  Shape shape(parts[0].shape());
  shape[axis] = 0;
  for (const Tensor& x : parts) shape[axis] += x.dim(axis);
  if (!checkShape(shape)) return {};
  return apply(parts, [&](ValueRange v) { return train::ConcatOp::create(builder, loc, v, axis); });
}

Tensor Emitter::cumsum(const Tensor& x, int64_t axis, bool exclusive, bool reverse) {
  if (!x) return {};
  return apply({x}, [&](ValueRange v) {
    return train::CumSumOp::create(builder, loc, v[0].getType(), v[0], axis, exclusive, reverse);
  });
}

Tensor Emitter::reduce(train::ReduceKind kind, const Tensor& x, ArrayRef<int64_t> axes, bool first) {
  if (!x) return {};
  if (x.isBool()) return error() << "booleans are not supported here", Tensor();
  for (int64_t axis : axes)
    if (!checkAxis(axis, x.rank())) return {};
  if (llvm::all_of(axes, [&](int64_t axis) { return x.dim(axis) == 1; })) return x;
  if (kind == train::ReduceKind::mean && llvm::any_of(axes, [&](int64_t axis) { return x.dim(axis) == 0; })) {
    SmallVector<int64_t> shape(x.shape());
    for (int64_t axis : axes) shape[axis] = 1;
    return splat(x.elementType(), shape, NAN);
  }
  return apply(
      {x}, [&](ValueRange v) { return train::ReduceOp::create(builder, loc, kind, v[0], axes, /*leaves=*/1, first); });
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
    return mismatch("inner dimensions of " + text(x.shape()) + " and " + text(y.shape()) + " differ"), Tensor();
  Shape leading(x.shape().drop_back(2)), other(y.shape().drop_back(2));
  auto batch = broadcastShape({splat(builder.getI64Type(), leading, 0), splat(builder.getI64Type(), other, 0)});
  if (!batch) return {};
  Shape shape = *batch;
  shape.append({m, n});
  if (!checkShape(shape)) return {};
  // A sum of no products is 0.
  if (k == 0 || *elementCount(shape) == 0) return splat(x.elementType(), shape, 0);
  auto multiply = [&](Value a, bool ta, Value b, bool tb) -> Tensor {
    return Value(train::MatMulOp::create(builder, loc, a, b, ta, tb));
  };
  if (y.rank() == 2 && (x.rank() == 2 || !transposeX)) {
    // All leading dimensions of x are rows of one matrix.
    Tensor rows = x.rank() == 2 ? x : reshape(x, {x.count() / k, k});
    if (!rows) return {};
    Value a = matrixOperand(rows, transposeX), b = matrixOperand(y, transposeY);
    return reshape(multiply(a, transposeX, b, transposeY), shape);
  }
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
  Tensor result = apply({transpose(x, permutation)}, [&](ValueRange v) -> Operation* {
    if (logarithm) return train::LogSoftmaxOp::create(builder, loc, v[0].getType(), v[0]);
    return train::SoftmaxOp::create(builder, loc, v[0].getType(), v[0]);
  });
  return transpose(result, permutation);
}

}  // namespace sheaf::frontend
