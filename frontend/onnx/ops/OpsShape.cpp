// Operators that move elements without looking at them.
#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Limits.h"
#include "ir/Train/Limits.h"
#include "llvm/ADT/SmallSet.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

LogicalResult reshape(Node& n) {
  Tensor x = n.input(0);
  auto dims = n.knownIntegers(1, "the shape");
  if (!x || !dims) return failure();
  int64_t inferred = -1, known = 1;
  for (size_t i = 0; i < dims->size(); ++i) {
    int64_t& dim = (*dims)[i];
    if (dim == 0 && !n.integer("allowzero", 0)) {
      if (int64_t(i) >= x.rank()) return n.error() << "the shape copies a dimension that the input lacks";
      dim = x.dim(i);
    }
    if (dim == -1) {
      if (inferred >= 0) return n.error() << "the shape has more than one -1";
      inferred = i;
    } else if (dim < 0 || (dim && known > kMaxGlobalElements / dim)) {
      return n.error() << "the shape has a dimension of " << dim;
    } else {
      known *= dim;
    }
  }
  if (inferred >= 0) (*dims)[inferred] = known ? x.count() / known : 0;
  return n.set(0, n.emit.reshape(x, *dims));
}

LogicalResult flatten(Node& n) {
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", 1), rows = 1;
  if (axis < -x.rank() || axis > x.rank())
    return n.error() << "axis " << axis << " is out of range for rank " << x.rank();
  if (axis < 0) axis += x.rank();
  for (int64_t d = 0; d < axis; ++d) rows *= x.dim(d);
  int64_t columns = 1;
  for (int64_t d = axis; d < x.rank(); ++d) columns *= x.dim(d);
  return n.set(0, n.emit.reshape(x, {rows, columns}));
}

LogicalResult squeeze(Node& n) {
  Tensor x = n.input(0);
  auto axes = n.axes(1, x.rank());
  if (failed(axes)) return failure();
  Shape shape;
  for (int64_t d = 0; d < x.rank(); ++d) {
    bool named = !*axes ? x.dim(d) == 1 : llvm::is_contained(**axes, d);
    if (named && x.dim(d) != 1) return n.error() << "dimension " << d << " has the size " << x.dim(d) << ", not 1";
    if (!named) shape.push_back(x.dim(d));
  }
  return n.set(0, n.emit.reshape(x, shape));
}

LogicalResult unsqueeze(Node& n) {
  Tensor x = n.input(0);
  std::optional<Shape> given = n.integers("axes");
  if (!given) {
    auto known = n.knownIntegers(1, "the list of axes");
    if (!known) return failure();
    given = Shape(known->begin(), known->end());
  }
  int64_t rank = x.rank() + given->size();
  if (!n.emit.checkRank(rank)) return failure();
  SmallVector<bool> fresh(rank);
  for (int64_t axis : *given) {
    if (!n.emit.checkAxis(axis, rank)) return failure();
    if (fresh[axis]) return n.error() << "an axis is named twice";
    fresh[axis] = true;
  }
  Shape shape;
  for (int64_t d = 0, from = 0; d < rank; ++d) shape.push_back(fresh[d] ? 1 : x.dim(from++));
  return n.set(0, n.emit.reshape(x, shape));
}

LogicalResult transpose(Node& n) {
  Tensor x = n.input(0);
  Shape permutation;
  for (int64_t d = x.rank(); d-- > 0;) permutation.push_back(d);
  return n.set(0, n.emit.transpose(x, n.integers("perm").value_or(permutation)));
}

LogicalResult concat(Node& n) {
  int64_t axis = n.integer("axis", n.opset < 4 ? 1 : 0);
  if (!n.input(0) || !n.emit.checkAxis(axis, n.input(0).rank())) return failure();
  for (const Tensor& x : n.tensors())
    if (!x) return n.error() << "an input is missing";
  return n.set(0, n.emit.concat(n.tensors(), axis));
}

LogicalResult split(Node& n) {
  Tensor x = n.input(0);
  int64_t axis = n.integer("axis", 0);
  if (!n.emit.checkAxis(axis, x.rank())) return failure();
  std::optional<std::vector<int64_t>> given;
  if (auto sizes = n.integers("split")) given = std::vector<int64_t>(sizes->begin(), sizes->end());
  if (n.input(1) && !(given = n.knownIntegers(1, "the list of parts"))) return failure();
  if (!given) {
    int64_t count = n.integer("num_outputs", n.outputs()), size = x.dim(axis);
    if (count < 1 || count > (1 << 16)) return n.error() << count << " parts are out of range";
    if (n.opset < 18 && size % count)
      return n.error() << "a dimension of " << size << " is not " << count << " equal parts";
    given.emplace();
    int64_t part = (size + count - 1) / count;
    for (int64_t i = 0, left = size; i < count; ++i) {
      given->push_back(std::min(part, left));
      left -= given->back();
    }
  }
  auto sizes = checkParts(n, x.dim(axis), *given);
  if (!sizes) return failure();
  if (int64_t(sizes->size()) != n.outputs())
    return n.error() << "has " << n.outputs() << " outputs for " << sizes->size() << " parts";
  int64_t start = 0;
  for (auto [i, size] : llvm::enumerate(*sizes)) {
    if (n.uses(i) && failed(n.set(i, n.emit.sliceAlong(x, axis, start, size)))) return failure();
    start += size;
  }
  return success();
}

LogicalResult slice(Node& n) {
  Tensor x = n.input(0);
  std::optional<std::vector<int64_t>> starts, ends, axes, steps;
  auto fromAttribute = [&](StringRef name) -> std::optional<std::vector<int64_t>> {
    auto list = n.integers(name);
    return list ? std::optional(std::vector<int64_t>(list->begin(), list->end())) : std::nullopt;
  };
  if (n.opset < 10) {
    starts = fromAttribute("starts"), ends = fromAttribute("ends"), axes = fromAttribute("axes");
    if (!starts || !ends) return n.error() << "the attributes starts and ends are missing";
  } else {
    if (!n.input(1) || !n.input(2)) return n.error() << "the inputs starts and ends are missing";
    if (!(starts = n.knownIntegers(1, "starts")) || !(ends = n.knownIntegers(2, "ends"))) return failure();
    if (n.input(3) && !(axes = n.knownIntegers(3, "the list of axes"))) return failure();
    if (n.input(4) && !(steps = n.knownIntegers(4, "steps"))) return failure();
  }
  size_t count = starts->size();
  if (ends->size() != count || (axes && axes->size() != count) || (steps && steps->size() != count) ||
      (!axes && int64_t(count) > x.rank()))
    return n.error() << "starts, ends, axes and steps differ in length";
  Shape at(x.rank(), 0), sizes(x.shape()), strides(x.rank(), 1);
  for (size_t i = 0; i < count; ++i) {
    int64_t axis = axes ? (*axes)[i] : int64_t(i), step = steps ? (*steps)[i] : 1;
    if (!n.emit.checkAxis(axis, x.rank())) return failure();
    if (step == 0 || step == INT64_MIN) return n.error() << "a step must not be " << step;
    int64_t size = x.dim(axis);
    // Not std::clamp: an empty dimension has high < low.
    auto clamp = [&](int64_t v, int64_t low, int64_t high) {
      return std::max(low, std::min(high, v < 0 ? std::max<int64_t>(v, -size - 1) + size : v));
    };
    int64_t begin = clamp((*starts)[i], 0, step > 0 ? size : size - 1);
    int64_t end = step > 0 ? clamp((*ends)[i], 0, size) : clamp((*ends)[i], -1, size - 1);
    int64_t span = step > 0 ? end - begin : begin - end, stride = std::abs(step);
    at[axis] = begin;
    strides[axis] = step;
    sizes[axis] = span > 0 && size ? (span - 1) / stride + 1 : 0;
    if (sizes[axis] <= 1) strides[axis] = 1;
    if (sizes[axis] == 0) at[axis] = 0;
  }
  return n.set(0, n.emit.slice(x, at, sizes, strides));
}

LogicalResult expand(Node& n) {
  auto dims = n.knownIntegers(1, "the shape");
  if (!dims || !n.emit.checkShape(*dims)) return failure();
  // The shape broadcasts both ways.
  auto shape = n.emit.broadcastShape({n.input(0), n.emit.splat(n.emit.ops().getI64Type(), *dims, 0)});
  return shape ? n.set(0, n.emit.expand(n.input(0), *shape)) : failure();
}

LogicalResult tile(Node& n) {
  Tensor x = n.input(0);
  auto repeats = n.knownIntegers(1, "the list of repeats");
  if (!repeats) return failure();
  if (int64_t(repeats->size()) != x.rank()) return n.error() << "needs one repeat per dimension";
  // [a, b] tiled by (r, s) is [1, a, 1, b] broadcast to [r, a, s, b].
  Shape spread, full, shape;
  for (int64_t d = 0; d < x.rank(); ++d) {
    int64_t repeat = (*repeats)[d];
    if (repeat < 0 || (repeat && x.dim(d) > kMaxGlobalElements / repeat))
      return n.error() << "a repeat of " << repeat << " is out of range";
    const bool apart = repeat != 1 && x.dim(d) != 1;
    if (apart) spread.push_back(1), full.push_back(repeat);
    spread.push_back(x.dim(d));
    full.push_back(apart ? x.dim(d) : repeat * x.dim(d));
    shape.push_back(repeat * x.dim(d));
  }
  if (!n.emit.checkShape(shape)) return failure();
  if (spread.size() <= size_t(train::kMaxPlanRank))
    return n.set(0, n.emit.reshape(n.emit.expand(n.emit.reshape(x, spread), full), shape));
  // One dimension after the other, with those before it and those after it as one each.
  for (int64_t d = 0; x && d < int64_t(shape.size()); ++d) {
    const int64_t repeat = (*repeats)[d], size = x.dim(d);
    if (repeat == 1) continue;
    Shape tiled(x.shape());
    tiled[d] *= repeat;
    const int64_t before = *elementCount(x.shape().take_front(d)), after = *elementCount(x.shape().drop_front(d + 1));
    x = n.emit.reshape(x, {before, 1, size, after});
    x = n.emit.reshape(n.emit.expand(x, {before, repeat, size, after}), tiled);
  }
  return n.set(0, x);
}

// One axis of x with `before` and `after` of its own elements around it.
Tensor padWithElements(Node& n, const Tensor& x, int64_t axis, StringRef mode, int64_t before, int64_t after) {
  Emitter& e = n.emit;
  if (!x || (before == 0 && after == 0)) return x;
  const int64_t size = x.dim(axis), period = mode == "reflect" ? 2 * (size - 1) : size;
  if (size == 0) return n.error() << "cannot pad an axis of no elements", Tensor();
  if (before > (1 << 20) || after > (1 << 20)) return n.error() << "a pad is out of range", Tensor();
  if (before <= size - 1 && after <= size - 1 && mode != "edge") {
    // Slices, whose gradients need no scatter: mirrored, or from the other end.
    bool mirrored = mode == "reflect";
    SmallVector<Tensor> parts;
    if (before)
      parts.push_back(mirrored ? e.sliceAlong(x, axis, before, before, -1)
                               : e.sliceAlong(x, axis, size - before, before));
    parts.push_back(x);
    if (after) parts.push_back(mirrored ? e.sliceAlong(x, axis, size - 2, after, -1) : e.sliceAlong(x, axis, 0, after));
    return e.concat(parts, axis);
  }
  if (size > kMaxTable) return n.error() << "an axis of " << size << " elements is out of range", Tensor();
  std::vector<int64_t> positions;
  for (int64_t i = -before; i < size + after; ++i) {
    int64_t p = std::clamp<int64_t>(i, 0, size - 1);
    if (mode != "edge") {
      p = period ? ((i % period) + period) % period : 0;
      if (p >= size) p = period - p;
    }
    positions.push_back(p);
  }
  return e.gather(x, e.integers(positions), axis);
}

LogicalResult pad(Node& n) {
  Tensor x = n.input(0);
  StringRef mode = n.string("mode", "constant");
  if (mode != "constant" && mode != "edge" && mode != "reflect" && mode != "wrap")
    return n.error() << "the mode '" << mode << "' is not known";
  std::optional<std::vector<int64_t>> amounts;
  double fill = n.number("value", 0);
  if (n.opset < 11) {
    if (auto list = n.integers("pads"))
      amounts = std::vector<int64_t>(list->begin(), list->end());
    else
      return n.error() << "the attribute pads is missing";
  } else {
    if (!(amounts = n.knownIntegers(1, "the list of pads"))) return failure();
    if (n.input(2)) {
      if (!n.input(2).constant() || n.input(2).count() != 1)
        return n.error() << "the padding value must be a known scalar";
      fill = n.input(2).constant()->splatValue();
    }
  }
  Shape axes;
  for (int64_t d = 0; d < x.rank(); ++d) axes.push_back(d);
  if (n.input(3)) {
    auto given = n.knownIntegers(3, "the list of axes");
    if (!given) return failure();
    axes.assign(given->begin(), given->end());
    llvm::SmallSet<int64_t, 8> named;
    for (int64_t& axis : axes) {
      if (!n.emit.checkAxis(axis, x.rank())) return failure();
      if (!named.insert(axis).second) return n.error() << "an axis is named twice";
    }
  }
  if (amounts->size() != 2 * axes.size()) return n.error() << "needs two pads per axis";
  // Negative pads cut; cut first, then pad.
  Shape low(x.rank(), 0), high(x.rank(), 0), starts(x.rank(), 0), sizes(x.shape()), steps(x.rank(), 1);
  for (size_t i = 0; i < axes.size(); ++i) {
    int64_t before = (*amounts)[i], after = (*amounts)[i + axes.size()], d = axes[i];
    if (std::max(before, after) > kMaxElements || std::min(before, after) < -kMaxElements)
      return n.error() << "a pad is out of range";
    low[d] = std::max<int64_t>(before, 0), high[d] = std::max<int64_t>(after, 0);
    starts[d] = std::max<int64_t>(-before, 0);
    sizes[d] -= starts[d] + std::max<int64_t>(-after, 0);
    if (sizes[d] < 0) return n.error() << "negative pads cut more than there is";
  }
  Tensor inner = n.emit.slice(x, starts, sizes, steps);
  if (mode != "constant") {
    for (int64_t d = 0; d < x.rank(); ++d) inner = padWithElements(n, inner, d, mode, low[d], high[d]);
    return n.set(0, inner);
  }
  Tensor padded = n.emit.pad(inner, low, high);
  if (fill == 0 || !padded || padded.shape() == inner.shape()) return n.set(0, padded);
  Tensor inside = n.emit.pad(n.emit.splat(n.emit.ops().getI1Type(), inner.shape(), 1), low, high);
  return n.set(0, n.emit.select(inside, padded, n.emit.splatLike(padded, fill)));
}

LogicalResult trilu(Node& n) {
  Tensor x = n.input(0);
  if (x.rank() < 2) return n.error() << "takes at least two dimensions";
  auto matrix = x.shape().take_back(2);
  int64_t k = 0;
  if (n.input(1)) {
    if (!n.input(1).constant() || n.input(1).count() != 1) return n.error() << "k must be a known scalar";
    // Beyond these there is no diagonal.
    k = std::clamp(n.input(1).constant()->splatInteger(), -matrix[0], matrix[1]);
  }
  Emitter& e = n.emit;
  Tensor row = e.scalar<train::AddOp>(e.iota(e.ops().getI64Type(), matrix, 0), double(k));
  Tensor column = e.iota(e.ops().getI64Type(), matrix, 1);
  auto keep = n.integer("upper", 1) ? train::ComparePredicate::ge : train::ComparePredicate::le;
  return n.set(0, e.select(e.compare(keep, column, row), x, e.splatLike(x, 0)));
}

constexpr Operator kOperators[] = {
    {"Reshape", 5, 0, 2, reshape, {.sample = "f[2,3], {3,2}"}},
    {"Flatten", 1, 0, 1, flatten},
    {"Squeeze", 1, 0, 1, squeeze, {.sample = "f[2,1,3], {1}"}},
    {"Unsqueeze", 1, 0, 1, unsqueeze, {.sample = "f[2,3], {1}"}},
    {"Transpose", 1, 0, 1, transpose},
    {"Concat", 1, 0, 1, concat, {.sample = "f[2,3], f[2,3]; axis=0"}},
    {"Split", 2, 0, 1, split, {.sample = "f[4,3]; num_outputs=2 outputs=2"}},
    {"Slice", 1, 0, 1, slice, {.sample = "f[4,3], {1}, {3}"}},
    {"Expand", 8, 0, 2, expand, {.sample = "f[1,3], {2,3}"}},
    {"Tile", 6, 0, 2, tile, {.sample = "f[2,3], {2,1}"}},
    {"Pad", 2, 0, 1, pad, {.sample = "f[2,3], {1,0,0,2}"}},
    {"Trilu", 14, 0, 1, trilu, {.sample = "f[3,3]"}},
};

}  // namespace

std::optional<std::vector<int64_t>> checkParts(Node& n, int64_t size, std::vector<int64_t> parts) {
  int64_t sum = 0;
  for (int64_t part : parts) {
    if (part < 0 || part > size) return n.error() << "a part of " << part << " elements is out of range", std::nullopt;
    sum += part;
    if (sum > size) break;
  }
  if (sum != size)
    return n.error() << "the parts take " << sum << " elements of a dimension that has " << size, std::nullopt;
  // Each part reads all of a known tensor.
  if (failed(n.importer.countElements(int64_t(parts.size()) * n.input(0).storedCount()))) return std::nullopt;
  return parts;
}

ArrayRef<Operator> shapeOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
