// Operators that make values out of nothing or of shapes, and those that pass values on.
#include <cmath>

#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

LogicalResult constant(Node& n) {
  Emitter& e = n.emit;
  if (const auto* a = n.attribute("value")) return n.set(0, constantTensor(e, n.importer.model, a->t()));
  Type f32 = e.ops().getF32Type();
  if (const auto* a = n.attribute("value_int")) return n.set(0, e.reshape(e.integers({a->i()}), {}));
  if (auto ints = n.integers("value_ints")) return n.set(0, e.integers(*ints));
  if (const auto* a = n.attribute("value_float")) return n.set(0, e.splat(f32, {}, a->f()));
  if (const auto* a = n.attribute("value_floats")) {
    std::string bytes(reinterpret_cast<const char*>(a->floats().data()), a->floats_size() * sizeof(float));
    return n.set(0, *Constant::fromBytes(RankedTensorType::get({a->floats_size()}, f32), bytes));
  }
  return n.error() << "only tensors, integers and floats are supported as constants";
}

LogicalResult constantOfShape(Node& n) {
  auto dims = n.knownIntegers(0, "the shape");
  if (!dims || !n.emit.checkShape(*dims)) return failure();
  Tensor value = n.emit.splat(n.emit.ops().getF32Type(), {1}, 0);
  if (const auto* a = n.attribute("value")) value = constantTensor(n.emit, n.importer.model, a->t());
  if (!value) return failure();
  if (value.count() != 1) return n.error() << "the attribute value must have one element";
  return n.set(0, n.emit.expand(n.emit.reshape(value, Shape(dims->size(), 1)), *dims));
}

LogicalResult shape(Node& n) {
  Tensor x = n.input(0);
  if (!x) return n.error() << "takes a tensor";
  int64_t rank = x.rank();
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank); };
  int64_t start = clamp(n.integer("start", 0)), end = n.has("end") ? clamp(n.integer("end", 0)) : rank;
  size_t length = std::max<int64_t>(end - start, 0);
  return n.set(0, n.emit.integers(x.shape().slice(start, length)));
}

LogicalResult size(Node& n) {
  Tensor x = n.input(0);
  if (!x) return n.error() << "takes a tensor";
  return n.set(0, n.emit.reshape(n.emit.integers({x.count()}), {}));
}

LogicalResult range(Node& n) {
  Emitter& e = n.emit;
  for (int64_t i = 0; i < 3; ++i)
    if (!n.input(i).constant() || n.input(i).count() != 1)
      return n.error() << "start, limit and delta must be known scalars, but depend on data or on a weight";
  const Constant &start = *n.input(0).constant(), &limit = *n.input(1).constant(), &delta = *n.input(2).constant();
  Type type = n.input(0).elementType();
  bool isFloat = n.input(0).isFloat();
  double count = isFloat ? std::ceil((limit.splatValue() - start.splatValue()) / delta.splatValue()) : 0;
  if (int64_t step = delta.splatInteger(); !isFloat && step) {
    // The difference of two 64-bit integers, rounded away from zero.
    __int128 span = __int128(limit.splatInteger()) - start.splatInteger();
    count = double(span / step + (span % step != 0 && (span < 0) == (step < 0)));
  }
  if (delta.splatValue() == 0 || std::isnan(count) || count > double(kMaxFolded))
    return n.error() << "a range of " << std::max(count, 0.0) << " elements is out of range";
  // start + i * delta in f64, so that floats are rounded once, or in i64.
  Type wide = isFloat ? Type(e.ops().getF64Type()) : Type(e.ops().getI64Type());
  Tensor index = e.iota(wide, {int64_t(std::max(count, 0.0))}, 0);
  Tensor offset = e.binary<train::MulOp>(index, e.reshape(e.cast(n.input(2), wide), {}));
  return n.set(0, e.cast(e.binary<train::AddOp>(offset, e.reshape(e.cast(n.input(0), wide), {})), type));
}

LogicalResult identity(Node& n) {
  if (n.inputs() != 1) return n.error() << "takes one input";
  n.setValue(0, n.operands[0]);
  return success();
}

LogicalResult cast(Node& n) {
  int64_t to = n.integer("to", 0);
  Type type = elementType(n.emit.context(), int32_t(to));
  if (!type) return n.error() << "elements of type " << dataTypeName(int32_t(to)) << " are not supported";
  return n.set(0, n.emit.cast(n.input(0), type));
}

LogicalResult castLike(Node& n) {
  if (!n.input(1)) return n.error() << "takes tensors";
  return n.set(0, n.emit.cast(n.input(0), n.input(1).elementType()));
}

LogicalResult eyeLike(Node& n) {
  Tensor x = n.input(0);
  if (!x || x.rank() != 2) return n.error() << "takes a matrix";
  Type type = x.elementType(), i64 = n.emit.ops().getI64Type();
  if (n.has("dtype")) type = elementType(n.emit.context(), int32_t(n.integer("dtype", 0)));
  if (!type) return n.error() << "elements of this type are not supported";
  Tensor row = n.emit.iota(i64, x.shape(), 0), column = n.emit.iota(i64, x.shape(), 1);
  Tensor diagonal = n.emit.scalar<train::AddOp>(row, double(n.integer("k", 0)));
  return n.set(0, n.emit.cast(n.emit.compare(train::ComparePredicate::eq, column, diagonal), type));
}

constexpr Operator kOperators[] = {
    {"Constant", 1, 0, 0, constant, {.sample = "; value_float=0.5"}},
    {"ConstantOfShape", 9, 0, 1, constantOfShape, {.sample = "{2,3}"}},
    {"Shape", 1, 0, 1, shape},
    {"Size", 1, 0, 1, size},
    {"Range", 11, 0, 3, range, {.sample = "0, 5, 1"}},
    {"Identity", 1, 0, 0, identity, {.sequences = true, .sample = "f[2,3]"}},
    {"Cast",
     6,
     0,
     1,
     cast,
     {.sample = "f[2,3]; to=6",
      .leftOut = {"test_cast_FLOAT_to_STRING", "strings"},
      .noGradient = {"", "between floats it is cast back"}}},
    {"CastLike", 15, 0, 2, castLike, {.sample = "f[2,3], i[1]"}},
    {"EyeLike", 9, 0, 1, eyeLike},
};

}  // namespace

ArrayRef<Operator> constantOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
