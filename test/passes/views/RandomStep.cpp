#include "test/passes/views/RandomStep.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace sheaf::train;

namespace sheaf::test {
namespace {

int64_t count(ArrayRef<int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>());
}

ArrayRef<int64_t> shapeOf(Value value) {
  return TensorBuilder::typeOf(value).getShape();
}

constexpr int64_t kMostElements = 1 << 14;

}  // namespace

RandomStep::RandomStep(MLIRContext& context, unsigned seed)
    : random(seed), builder(&context), b{builder, builder.getUnknownLoc()} {
  module = ModuleOp::create(b.location);
  (*module)->setAttr("train.ranks", builder.getI64IntegerAttr(1));
  (*module)->setAttr("train.batch", builder.getI64IntegerAttr(kRows));
  builder.setInsertionPointToEnd(module->getBody());
  step = func::FuncOp::create(builder, b.location, "step", builder.getFunctionType({}, {}));
  builder.setInsertionPointToEnd(step.addEntryBlock());

  // The loss is a weighted sum of all results, so that no two of their elements can be exchanged unnoticed.
  Value loss;
  for (int64_t i = 0, results = 1 + below(2); i < results; ++i) {
    Value result = chance(0.65) ? attention() : product({of({1, 3, 8, 17}), of({1, 2, 12, 33, 65})}, 3);
    result = disguise(result, int(below(4)));
    if (chance(0.4)) {
      int64_t columns = shapeOf(result).empty() ? 1 : shapeOf(result).back(), rows = count(shapeOf(result)) / columns;
      result = b.make<MatMulOp>(b.reshape(result, {rows, columns}), parameter({columns, of({1, 4, 9, 31})}));
      result = disguise(result, int(below(2)));
    }
    int64_t n = count(shapeOf(result));
    Value weighted = b.mul(b.reshape(result, {n}), constant({n}));
    Value sum = b.reshape(b.reduceRows(ReduceKind::sum, weighted), {});
    loss = loss ? b.add(loss, sum) : sum;
  }
  LossOp::create(builder, b.location, loss);
  func::ReturnOp::create(builder, b.location);
  removeUnused();
  step.setType(builder.getFunctionType(step.getBody().getArgumentTypes(), {}));
}

train::Tensor RandomStep::numbers(RankedTensorType type, double scale) {
  train::Tensor tensor = train::Tensor::zeros(type);
  std::normal_distribution<float> normal(0, float(scale));
  for (double& x : tensor.f) x = normal(random);
  return tensor;
}

RankedTensorType RandomStep::f32(ArrayRef<int64_t> shape) {
  return RankedTensorType::get(shape, builder.getF32Type());
}

Value RandomStep::parameter(ArrayRef<int64_t> shape) {
  std::string name = "p" + std::to_string(parameters.size());
  train::Tensor value = numbers(f32(shape), 0.5);
  {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPoint(step);
    ParameterOp::create(builder, b.location, builder.getStringAttr(name), TypeAttr::get(value.type),
                        builder.getBoolAttr(true), SourceAttr(), toAttribute(value), DenseI64ArrayAttr());
  }
  parameters[name] = value;
  return b.make<ReadOp>(value.type, name);
}

Value RandomStep::input(ArrayRef<int64_t> shape) {
  int64_t n = count(shape), columns = (n + kRows - 1) / kRows;
  std::string name = "x" + std::to_string(inputs.size());
  inputs.push_back(numbers(f32({kRows, columns}), 0.5));
  auto attributes = builder.getDictionaryAttr(builder.getNamedAttr("train.name", builder.getStringAttr(name)));
  unsigned index = step.getNumArguments();
  (void)step.insertArgument(index, inputs.back().type, attributes, b.location);
  Value flat = b.reshape(step.getArgument(index), {kRows * columns});
  return b.reshape(slice(flat, 0, 0, n), shape);
}

Value RandomStep::constant(ArrayRef<int64_t> shape) {
  return b.make<ConstantOp>(toAttribute(numbers(f32(shape), 0.5)));
}

Value RandomStep::slice(Value value, int64_t axis, int64_t start, int64_t size, int64_t step) {
  Shape starts(shapeOf(value).size(), 0), sizes(shapeOf(value)), steps(starts.size(), 1);
  starts[axis] = start, sizes[axis] = size, steps[axis] = step;
  return b.make<SliceOp>(value, starts, sizes, steps);
}

Shape RandomStep::shuffledAxes(int64_t rank) {
  Shape axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  std::shuffle(axes.begin(), axes.end(), random);
  return axes;
}

// Another shape of the same elements: neighbours merged, or a dimension split.
Shape RandomStep::regrouped(ArrayRef<int64_t> shape) {
  Shape result(shape);
  if (result.size() > 1 && chance(0.5)) {
    int64_t d = below(int64_t(result.size()) - 1);
    result[d] *= result[d + 1];
    result.erase(result.begin() + d + 1);
  } else if (!result.empty() && result.size() < 5) {
    int64_t d = below(int64_t(result.size()));
    Shape divisors;
    for (int64_t k = 1; k <= result[d]; ++k)
      if (result[d] % k == 0) divisors.push_back(k);
    int64_t minor = of(divisors);
    result[d] /= minor;
    result.insert(result.begin() + d + 1, minor);
  }
  return result;
}

Value RandomStep::make(ArrayRef<int64_t> shape, int depth) {
  int64_t rank = int64_t(shape.size()), n = count(shape);
  if (depth <= 0 || rank == 0 || n > kMostElements) return chance(0.6) ? parameter(shape) : input(shape);
  int64_t axis = below(rank);
  Shape from(shape);
  switch (below(10)) {
    case 0: {  // transpose
      Shape permutation = shuffledAxes(rank);
      for (int64_t d = 0; d < rank; ++d) from[permutation[d]] = shape[d];
      return b.make<TransposeOp>(make(from, depth - 1), permutation);
    }
    case 1:
      return b.reshape(make(regrouped(shape), depth - 1), shape);
    case 2: {  // every step-th element of a longer dimension, forwards or backwards
      int64_t step = of({1, 1, 1, 2, 3}), before = below(3), after = below(3);
      int64_t last = before + (shape[axis] - 1) * step;
      from[axis] = last + 1 + after;
      bool backwards = chance(0.3);
      return slice(make(from, depth - 1), axis, backwards ? last : before, shape[axis], backwards ? -step : step);
    }
    case 3:
      return b.make<ReverseOp>(make(shape, depth - 1), ArrayRef<int64_t>{axis});
    case 4:
      from[axis] = 1;
      return b.broadcast(make(from, depth - 1), shape);
    case 5: {  // two pieces, which may be the same value
      if (shape[axis] < 2) return make(shape, depth - 1);
      Shape low(shape), high(shape);
      low[axis] = shape[axis] % 2 == 0 && chance(0.5) ? shape[axis] / 2 : 1 + below(shape[axis] - 1);
      high[axis] = shape[axis] - low[axis];
      Value first = make(low, depth - 1), second = low == high && chance(0.3) ? first : make(high, depth - 1);
      return b.make<ConcatOp>(ValueRange{first, second}, axis);
    }
    case 6: {
      if (shape[axis] < 3) return make(shape, depth - 1);
      Shape low(rank, 0), high(rank, 0), interior(rank, 0);
      low[axis] = 1, from[axis] -= 2, high[axis] = 1;
      return b.make<PadOp>(make(from, depth - 1), low, high, interior);
    }
    case 7:
      return product(shape, depth);
    default:
      return computed(shape, depth);
  }
}

Value RandomStep::computed(ArrayRef<int64_t> shape, int depth) {
  Value x = make(shape, depth - 1);
  Shape row(shape.size(), 1);
  row.back() = shape.back();
  switch (below(5)) {
    case 0:
      return b.add(x, b.broadcast(make(row, depth - 2), shape));
    case 1:
      return b.make<GeluOp>(x, chance(0.5) ? builder.getUnitAttr() : UnitAttr());
    case 2:
      return b.mul(x, make(shape, depth - 2));
    case 3:
      return b.add(b.mul(x, 0.5), constant(shape));
    default:
      return b.make<TanhOp>(x.getType(), x);
  }
}

// A matrix product that has this shape, after a reshape if it must.
Value RandomStep::product(ArrayRef<int64_t> shape, int depth) {
  int64_t columns = shape.empty() ? 1 : shape.back(), rows = count(shape) / columns;
  int64_t k = of({1, 2, 5, 8, 16, 33});
  bool batched = shape.size() > 2 && chance(0.5), transposeA = chance(0.4), transposeB = chance(0.4);
  Shape left{rows, k}, right{k, columns};
  if (batched) left[0] /= shape[0];
  if (transposeA) std::swap(left[0], left[1]);
  if (transposeB) std::swap(right[0], right[1]);
  if (batched) left.insert(left.begin(), shape[0]), right.insert(right.begin(), shape[0]);
  Value result = b.make<MatMulOp>(make(left, depth - 1), make(right, depth - 1), transposeA, transposeB);
  if (!batched && chance(0.4)) {
    result = b.add(result, b.broadcast(b.reshape(parameter({columns}), {1, columns}), shapeOf(result)));
    if (chance(0.5)) result = b.make<GeluOp>(result, builder.getUnitAttr());
  }
  return b.reshape(b.mul(result, 1 / std::sqrt(double(k))), shape);
}

Value RandomStep::disguise(Value value, int remaining) {
  for (; remaining > 0; --remaining) {
    Shape shape(shapeOf(value));
    int64_t rank = int64_t(shape.size());
    if (rank == 0 || count(shape) > kMostElements) return value;
    int64_t axis = below(rank);
    switch (below(7)) {
      case 0:
        value = b.make<TransposeOp>(value, shuffledAxes(rank));
        break;
      case 1:
        value = b.reshape(value, regrouped(shape));
        break;
      case 2: {
        int64_t size = 1 + below(shape[axis]);
        value = slice(value, axis, below(shape[axis] - size + 1), size);
        break;
      }
      case 3:
        value = b.make<ReverseOp>(value, ArrayRef<int64_t>{axis});
        break;
      case 4:
        value =
            b.make<ConcatOp>(chance(0.5) ? ValueRange{value, make(shape, 1)} : ValueRange{make(shape, 1), value}, axis);
        break;
      case 5:
        value = b.add(value, make(shape, 1));
        break;
      default:
        value = b.make<TanhOp>(value.getType(), value);
        break;
    }
  }
  return value;
}

std::array<Value, 3> RandomStep::projections(const Sizes& z) {
  Shape shapes[3] = {{z.b, z.s, z.h, z.d}, {z.b, z.t, z.g, z.d}, {z.b, z.t, z.g, z.e}};
  int64_t order[3] = {0, 1, 2};
  std::shuffle(order, order + 3, random);
  std::array<Value, 3> result;
  // Slices of `parent` along `axis`, one of these sizes for each of query, key and value; the rest of it is unused.
  auto cut = [&](Shape parent, int64_t axis, std::array<int64_t, 3> sizes, bool spare) {
    parent[axis] = sizes[0] + sizes[1] + sizes[2] + (spare ? 1 : 0);
    Value whole = make(parent, 2);
    int64_t at = spare ? below(2) : 0;
    for (int64_t i : order) result[i] = slice(whole, axis, at, sizes[i]), at += sizes[i];
  };
  bool self = z.s == z.t, equal = self && z.h == z.g && z.d == z.e, spare = chance(0.2);
  int64_t kind = below(8);
  if (kind == 0 && self) {  // [B, S, Q | K | V]
    cut({z.b, z.s, 0}, 2, {z.h * z.d, z.g * z.d, z.g * z.e}, spare);
  } else if (kind <= 2 && self && z.h == z.g) {  // interleaved by head: GPT-NeoX
    cut({z.b, z.s, z.h, 0}, 3, {z.d, z.d, z.e}, spare);
  } else if (kind == 3 && equal) {  // [B, S, 3, H, D]
    cut({z.b, z.s, 0, z.h, z.d}, 2, {1, 1, 1}, spare);
  } else if (kind == 4 && equal) {  // [B, S, H, 3, D]
    cut({z.b, z.s, z.h, 0, z.d}, 3, {1, 1, 1}, spare);
  } else if (kind == 5 && equal) {  // [3, B, H, S, D]
    cut({0, z.b, z.h, z.s, z.d}, 0, {1, 1, 1}, spare);
    for (Value& v : result) v = b.make<TransposeOp>(v, ArrayRef<int64_t>{0, 1, 3, 2, 4});
  } else if (kind == 6 && self && z.d == z.e) {  // interleaved by group: [B, S, G, H / G + 2, D]
    cut({z.b, z.s, z.g, 0, z.d}, 3, {z.h / z.g, 1, 1}, spare);
  } else if (kind == 7 && self && z.d == z.e) {  // [B, S, H + 2 G, D]
    cut({z.b, z.s, 0, z.d}, 2, {z.h, z.g, z.g}, spare);
  } else if (self && z.d == z.e && chance(0.5)) {  // keys and values by head, queries apart
    Value whole = make({z.b, z.t, z.g, z.d + z.e}, 2);
    result = {make(shapes[0], 3), slice(whole, 3, 0, z.d), slice(whole, 3, z.d, z.e)};
  } else {
    for (int i = 0; i < 3; ++i) result[i] = make(shapes[i], 3);
  }
  for (int i = 0; i < 3; ++i) {
    result[i] = b.reshape(result[i], shapes[i]);
    if (chance(0.25) && shapes[i][3] % 2 == 0) {  // a rotation of halves
      int64_t half = shapes[i][3] / 2;
      Value low = slice(result[i], 3, 0, half), high = slice(result[i], 3, half, half);
      Value turned = b.make<ConcatOp>(ValueRange{b.neg(high), low}, 3);
      Shape angles{1, shapes[i][1], 1, shapes[i][3]};
      result[i] = b.add(b.mul(result[i], b.broadcast(constant(angles), shapes[i])),
                        b.mul(turned, b.broadcast(constant(angles), shapes[i])));
    } else if (chance(0.15)) {
      result[i] = b.add(result[i], b.broadcast(make({1, 1, shapes[i][2], shapes[i][3]}, 1), shapes[i]));
    }
  }
  return result;
}

Value RandomStep::attention() {
  Sizes z;
  z.b = 1 + below(3), z.s = of({1, 2, 5, 8, 17}), z.t = chance(0.7) ? z.s : of({1, 3, 8, 20});
  z.g = of({1, 2, 3}), z.h = z.g * (chance(0.5) ? 1 : of({2, 3}));
  z.d = of({1, 2, 4, 5, 8, 12, 16, 33}), z.e = chance(0.7) ? z.d : of({1, 3, 8, 10});
  auto [query, key, value] = projections(z);
  if (chance(0.5)) return written(z, query, key, value);
  Value mask;
  if (chance(0.3)) mask = b.mul(input({chance(0.5) ? z.b : 1, chance(0.5) ? z.h : 1, z.s, z.t}), 2);
  bool causal = chance(0.4);
  IntegerAttr window = causal && chance(0.4) ? builder.getI64IntegerAttr(1 + below(z.t)) : IntegerAttr();
  return AttentionOp::create(builder, b.location, query, key, value, mask,
                             builder.getF64FloatAttr(1 / std::sqrt(double(z.d))),
                             causal ? builder.getUnitAttr() : UnitAttr(), window)
      .getResult();
}

Value RandomStep::written(const Sizes& z, Value query, Value key, Value value) {
  auto heads = [&](Value v, bool transposed) {
    Shape shape(shapeOf(v));
    int64_t repeats = z.h / shape[2];
    if (transposed && chance(0.5)) {
      v = b.make<TransposeOp>(v, ArrayRef<int64_t>{0, 2, 3, 1});
    } else {
      v = b.make<TransposeOp>(v, ArrayRef<int64_t>{0, 2, 1, 3});
      if (transposed) v = b.make<TransposeOp>(v, ArrayRef<int64_t>{0, 1, 3, 2});
    }
    Shape matrix(shapeOf(v).take_back(2));
    if (repeats > 1) {
      // A head for several queries next to each other, as in grouped-query attention, or one round after the other.
      bool adjacent = chance(0.8);
      Shape one{z.b, shape[2], 1, matrix[0], matrix[1]}, many{z.b, shape[2], repeats, matrix[0], matrix[1]};
      if (!adjacent) std::swap(one[1], one[2]), std::swap(many[1], many[2]);
      v = b.broadcast(b.reshape(v, one), many);
    }
    return b.reshape(v, {z.b * z.h, matrix[0], matrix[1]});
  };
  Value q = heads(query, false), k = heads(key, true), v = heads(value, false);
  double scale = 1 / std::sqrt(double(z.d));
  bool before = chance(0.3);
  if (before) q = b.mul(q, scale);
  Value scores = b.make<MatMulOp>(q, k);
  if (!before) scores = b.mul(scores, scale);
  Shape whole{z.b, z.h, z.s, z.t};
  scores = b.reshape(scores, whole);
  if (chance(0.3)) {
    scores = b.add(scores, b.broadcast(input({chance(0.5) ? z.b : 1, 1, z.s, z.t}), whole));
  } else if (chance(0.5) && z.s <= z.t) {
    RankedTensorType positions = RankedTensorType::get({z.s, z.t}, builder.getI64Type());
    Value row = b.make<IotaOp>(positions, int64_t(0)), column = b.make<IotaOp>(positions, int64_t(1));
    Value seen = b.compare(ComparePredicate::ge, b.add(row, b.splat(positions, double(z.t - z.s))), column);
    Value low = b.splat(f32({z.s, z.t}), -1e30), none = b.splat(f32({z.s, z.t}), 0);
    Value added = b.reshape(b.select(seen, none, low), {1, 1, z.s, z.t});
    scores = b.add(scores, b.broadcast(added, whole));
  }
  Value weights = b.reshape(b.make<SoftmaxOp>(scores.getType(), scores), {z.b * z.h, z.s, z.t});
  Value result = b.reshape(b.make<MatMulOp>(weights, v), {z.b, z.h, z.s, z.e});
  return chance(0.7) ? b.make<TransposeOp>(result, ArrayRef<int64_t>{0, 2, 1, 3}) : result;
}

void RandomStep::removeUnused() {
  for (Operation& op : llvm::make_early_inc_range(llvm::reverse(step.getBody().front())))
    if (op.getNumResults() && op.use_empty()) op.erase();
  llvm::StringSet<> read;
  for (auto op : step.getOps<ReadOp>()) read.insert(op.getParameter());
  for (auto parameter : llvm::make_early_inc_range(module->getOps<ParameterOp>()))
    if (!read.contains(parameter.getSymName())) {
      parameters.erase(parameter.getSymName().str());
      parameter.erase();
    }
}

}  // namespace sheaf::test
