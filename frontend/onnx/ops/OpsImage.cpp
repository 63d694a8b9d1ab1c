// Operators on images and grids: rearrangements, crops, and sampling at computed positions.
#include <cmath>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Limits.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;

// The block size and whether columns and rows come before the depth (CRD) instead of after it (DCR).
std::optional<std::pair<int64_t, bool>> blocks(Node& n) {
  const int64_t block = n.integer("blocksize", 0);
  StringRef mode = n.string("mode", "DCR");
  if (n.input(0).rank() != 4) return n.error() << "takes four dimensions", std::nullopt;
  if (block < 1 || block > (1 << 20))
    return n.error() << "a blocksize of " << block << " is out of range", std::nullopt;
  if (mode != "DCR" && mode != "CRD")
    return n.error() << "the attribute mode is '" << mode << "'; it takes DCR or CRD", std::nullopt;
  return std::pair(block, mode == "CRD");
}

LogicalResult depthToSpace(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  auto form = blocks(n);
  if (!form) return failure();
  auto [block, columnsFirst] = *form;
  if (x.dim(1) % (block * block)) return n.error() << "the square of the blocksize does not divide the channels";
  const int64_t depth = x.dim(1) / (block * block), height = x.dim(2), width = x.dim(3);
  Tensor apart = columnsFirst ? e.reshape(x, {x.dim(0), depth, block, block, height, width})
                              : e.reshape(x, {x.dim(0), block, block, depth, height, width});
  Tensor moved = columnsFirst ? e.transpose(apart, {0, 1, 4, 2, 5, 3}) : e.transpose(apart, {0, 3, 4, 1, 5, 2});
  return n.set(0, e.reshape(moved, {x.dim(0), depth, height * block, width * block}));
}

LogicalResult spaceToDepth(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  auto form = blocks(n);
  if (!form) return failure();
  auto [block, columnsFirst] = *form;
  if (x.dim(2) % block || x.dim(3) % block) return n.error() << "the blocksize does not divide height and width";
  const int64_t height = x.dim(2) / block, width = x.dim(3) / block;
  Tensor apart = e.reshape(x, {x.dim(0), x.dim(1), height, block, width, block});
  Tensor moved = columnsFirst ? e.transpose(apart, {0, 1, 3, 5, 2, 4}) : e.transpose(apart, {0, 3, 5, 1, 2, 4});
  return n.set(0, e.reshape(moved, {x.dim(0), x.dim(1) * block * block, height, width}));
}

LogicalResult centerCropPad(Node& n) {
  Tensor x = n.input(0);
  auto sizes = n.knownIntegers(1, "the shape");
  if (!sizes) return failure();
  Shape axes = n.integers("axes").value_or(Shape());
  if (!n.has("axes"))
    for (int64_t d = 0; d < x.rank(); ++d) axes.push_back(d);
  if (axes.size() != sizes->size()) return n.error() << "needs one size for each axis";
  Shape low(x.rank(), 0), high(x.rank(), 0), starts(x.rank(), 0), kept(x.shape()), steps(x.rank(), 1);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t size = (*sizes)[i];
    if (!n.emit.checkAxis(axes[i], x.rank())) return failure();
    if (size < 0 || size > kMaxElements) return n.error() << "a size of " << size << " is out of range";
    const int64_t axis = axes[i], more = size - x.dim(axis);
    if (more >= 0) {
      low[axis] = more / 2, high[axis] = more - more / 2;
    } else {
      starts[axis] = -more / 2, kept[axis] = size;
    }
  }
  return n.set(0, n.emit.pad(n.emit.slice(x, starts, kept, steps), low, high));
}

// Adds each block where it comes from: for every element of the block, its image of all blocks, spread by the strides.
LogicalResult col2im(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  auto image = n.knownIntegers(1, "the shape of the image"), block = n.knownIntegers(2, "the shape of the blocks");
  if (!image || !block) return failure();
  const size_t spatial = image->size();
  Shape strides = n.integers("strides").value_or(Shape(spatial, 1)),
        dilations = n.integers("dilations").value_or(Shape(spatial, 1)),
        pads = n.integers("pads").value_or(Shape(2 * spatial, 0));
  if (x.rank() != 3 || block->size() != spatial || strides.size() != spatial || dilations.size() != spatial ||
      pads.size() != 2 * spatial || spatial == 0)
    return n.error() << "image_shape, block_shape, strides, dilations and pads must have one entry per dimension";
  Shape padded, counts;
  for (size_t d = 0; d < spatial; ++d) {
    constexpr int64_t kLimit = 1 << 20;
    for (int64_t v : {(*image)[d], (*block)[d], strides[d], dilations[d]})
      if (v < 1 || v > kLimit) return n.error() << "a size or attribute of " << v << " is out of range";
    for (int64_t v : {pads[d], pads[d + spatial]})
      if (v < 0 || v > kLimit) return n.error() << "a pad of " << v << " is out of range";
    padded.push_back((*image)[d] + pads[d] + pads[d + spatial]);
    const int64_t room = padded[d] - dilations[d] * ((*block)[d] - 1) - 1;  // to move a block
    if (room < 0) return n.error() << "the blocks are larger than the padded image";
    counts.push_back(room / strides[d] + 1);
  }
  auto area = elementCount(*block), positions = elementCount(counts);
  if (!area || !positions || x.dim(1) % *area || x.dim(2) != *positions)
    return n.error() << "the shapes of input, image and blocks do not fit each other";
  if (failed(n.importer.countParts(*area))) return failure();
  const int64_t channels = x.dim(1) / *area;
  Tensor apart = e.reshape(x, {x.dim(0), channels, *area, x.dim(2)}), sum;
  for (int64_t k = 0; k < *area; ++k) {
    Shape shape{x.dim(0), channels}, low{0, 0}, high{0, 0}, between{0, 0};
    int64_t rest = k;
    Shape at(spatial);
    for (size_t d = spatial; d-- > 0; rest /= (*block)[d]) at[d] = rest % (*block)[d];
    for (size_t d = 0; d < spatial; ++d) {
      shape.push_back(counts[d]);
      low.push_back(at[d] * dilations[d]);
      between.push_back(strides[d] - 1);
      high.push_back(padded[d] - low.back() - (counts[d] - 1) * strides[d] - 1);
    }
    Tensor piece = e.pad(e.reshape(e.sliceAlong(apart, 2, k, 1), shape), low, high, between);
    sum = sum ? e.binary<train::AddOp>(sum, piece) : piece;
    if (!sum) return failure();
  }
  for (size_t d = 0; d < spatial; ++d) sum = e.sliceAlong(sum, 2 + d, pads[d], (*image)[d]);
  return n.set(0, sum);
}

LogicalResult affineGrid(Node& n) {
  Emitter& e = n.emit;
  Tensor theta = n.input(0);
  auto size = n.knownIntegers(1, "the size");
  if (!size) return failure();
  const int64_t spatial = int64_t(size->size()) - 2;
  if (spatial < 1 || theta.rank() != 3 || theta.dim(1) != spatial || theta.dim(2) != spatial + 1 || !theta.isFloat())
    return n.error() << "takes matrices [N, 2, 3] for a size of four dimensions, or [N, 3, 4] for one of five";
  Shape shape(size->begin() + 2, size->end());
  auto count = elementCount(shape);
  if (!count || *count > kMaxTable / (spatial + 1)) return n.error() << "the size is out of range";
  // Positions in [-1, 1], the last dimension first, and ones.
  std::vector<double> base((spatial + 1) * *count, 1);
  for (int64_t p = 0; p < *count; ++p) {
    int64_t rest = p;
    for (int64_t d = spatial; d-- > 0; rest /= shape[d]) {
      const double at = double(rest % shape[d]), length = double(shape[d]);
      base[(spatial - 1 - d) * *count + p] =
          n.integer("align_corners", 0) ? (length == 1 ? 0 : 2 * at / (length - 1) - 1) : (2 * at + 1) / length - 1;
    }
  }
  Tensor moved = e.matmul(theta, e.floats(theta.elementType(), {spatial + 1, *count}, base));
  Shape result{theta.dim(0)};
  llvm::append_range(result, shape);
  result.push_back(spatial);
  return n.set(0, e.reshape(e.transpose(moved, {0, 2, 1}), result));
}

// GridSample: rows of channels gathered at the neighbours of each position, times weights that depend on the position.
class GridSampler {
 public:
  explicit GridSampler(Node& n) : n(n), e(n.emit) {}

  LogicalResult run() {
    x = n.input(0);
    Tensor grid = n.input(1);
    const int64_t spatial = x.rank() - 2;
    if (!x.isFloat() || !grid.isFloat() || spatial < 1 || grid.rank() != x.rank() || grid.shape().back() != spatial ||
        grid.dim(0) != x.dim(0) || x.count() == 0)
      return n.error() << "takes an input [N, C, ...] and a grid [N, ..., one number for each dimension]";
    mode = n.string("mode", n.opset < 20 ? "bilinear" : "linear");
    if (mode == "bilinear") mode = "linear";
    if (mode == "bicubic") mode = "cubic";
    padding = n.string("padding_mode", "zeros");
    corners = n.integer("align_corners", 0);
    if (mode != "nearest" && mode != "linear" && mode != "cubic")
      return n.error() << "the mode '" << mode << "' is not known";
    if (padding != "zeros" && padding != "border" && padding != "reflection")
      return n.error() << "the padding_mode '" << padding << "' is not known";
    int64_t neighbours = 1;
    for (int64_t d = 0; d < spatial; ++d)
      neighbours = std::min(neighbours * (mode == "nearest" ? 1 : mode == "linear" ? 2 : 4), kMaxTable);
    if (failed(n.importer.countParts(neighbours))) return failure();
    grid = e.cast(grid, x.elementType());
    Shape places(grid.shape().drop_back());
    std::vector<std::vector<Tap>> taps;
    for (int64_t d = 0; d < spatial; ++d) {
      Tensor at = e.reshape(e.sliceAlong(grid, spatial + 1, spatial - 1 - d, 1), places);
      taps.push_back(tapsOf(at, x.dim(2 + d)));
      if (taps.back().empty()) return failure();
    }
    // The channels last, and all positions of an image as rows.
    Shape permutation{0};
    for (int64_t d = 0; d < spatial; ++d) permutation.push_back(2 + d);
    permutation.push_back(1);
    Tensor rows = e.reshape(e.transpose(x, permutation), {x.dim(0), x.count() / x.dim(1) / x.dim(0), x.dim(1)});
    Tensor sum = combine(rows, taps, 0, {});
    Shape back{0, spatial + 1};
    for (int64_t d = 0; d < spatial; ++d) back.push_back(1 + d);
    return n.set(0, e.transpose(sum, back));
  }

 private:
  // A neighbour along one dimension: its index and its weight, absent for 1.
  struct Tap {
    Tensor index, weight;
  };

  Tensor clamp(const Tensor& v, double low, double high) {
    return e.scalar<train::MinOp>(e.scalar<train::MaxOp>(v, low), high);
  }

  // Mirrored at `low` and `high` until it lies between them.
  Tensor reflect(const Tensor& v, double low, double high) {
    const double span = high - low;
    if (span <= 0) return e.splatLike(v, 0);
    Tensor distance = e.unary<train::AbsOp>(e.scalar<train::SubOp>(v, low));
    Tensor turns = e.unary<train::FloorOp>(e.scalar<train::DivOp>(distance, span));
    Tensor rest = e.binary<train::SubOp>(distance, e.scalar<train::MulOp>(turns, span));
    Tensor half = e.scalar<train::MulOp>(turns, 0.5);
    Tensor even = e.compare(Predicate::eq, half, e.unary<train::FloorOp>(half));
    return e.select(even, e.scalar<train::AddOp>(rest, low), e.scalar<train::AddOp>(e.unary<train::NegOp>(rest), high));
  }

  std::vector<Tap> tapsOf(Tensor at, int64_t size) {
    const double length = double(size), low = corners ? 0 : -0.5, high = corners ? length - 1 : length - 0.5;
    at = e.scalar<train::AddOp>(at, 1);
    at = corners ? e.scalar<train::MulOp>(at, (length - 1) / 2)
                 : e.scalar<train::DivOp>(e.scalar<train::SubOp>(e.scalar<train::MulOp>(at, length), 1), 2);
    if (mode == "nearest") at = e.unary<train::RoundOp>(at);
    const bool linear = mode == "linear";
    if (padding == "reflection" || (padding == "border" && !linear)) {
      Tensor outside = e.binary<train::OrOp>(e.compare(Predicate::lt, at, e.splatLike(at, low)),
                                             e.compare(Predicate::gt, at, e.splatLike(at, high)));
      at = e.select(outside, padding == "border" ? clamp(at, 0, length - 1) : reflect(at, low, high), at);
    }
    // As in PyTorch, a border lies outside: the position has no gradient there.
    if (padding != "zeros" && linear)
      at = e.bounded<train::MinOp>(e.bounded<train::MaxOp>(at, e.splatLike(at, 0)), e.splatLike(at, length - 1));
    if (mode == "nearest") return {pixel(at, Tensor(), size)};
    Tensor first = e.unary<train::FloorOp>(at), part = e.binary<train::SubOp>(at, first);
    Tensor rest = e.binary<train::SubOp>(e.splatLike(part, 1), part);
    if (linear) return {pixel(first, rest, size), pixel(e.scalar<train::AddOp>(first, 1), part, size)};
    std::vector<Tap> taps;
    for (int64_t k = -1; k <= 2; ++k) {
      const Tensor& near = k < 1 ? part : rest;
      Tensor weight = k == 0 || k == 1 ? inner(near) : outer(e.scalar<train::AddOp>(near, 1));
      taps.push_back(pixel(e.scalar<train::AddOp>(first, double(k)), weight, size));
    }
    return taps;
  }

  // Keys' kernel for distances up to 1 and from 1 to 2.
  static constexpr double kCubic = -0.75;
  Tensor inner(const Tensor& v) {
    Tensor line = e.scalar<train::SubOp>(e.scalar<train::MulOp>(v, kCubic + 2), kCubic + 3);
    return e.scalar<train::AddOp>(e.binary<train::MulOp>(line, e.binary<train::MulOp>(v, v)), 1);
  }
  Tensor outer(const Tensor& v) {
    Tensor result = e.scalar<train::SubOp>(e.scalar<train::MulOp>(v, kCubic), 5 * kCubic);
    result = e.scalar<train::AddOp>(e.binary<train::MulOp>(result, v), 8 * kCubic);
    return e.scalar<train::SubOp>(e.binary<train::MulOp>(result, v), 4 * kCubic);
  }

  // A neighbour at a whole position, which may lie outside.
  Tap pixel(Tensor at, Tensor weight, int64_t size) {
    const double last = double(size - 1);
    if (padding == "reflection" && mode != "linear") at = reflect(at, corners ? 0 : -0.5, corners ? last : last + 0.5);
    Tensor index = e.cast(clamp(at, 0, last), e.ops().getI64Type());
    if (padding != "zeros") return {index, weight};
    Tensor inside = e.binary<train::AndOp>(e.compare(Predicate::ge, at, e.splatLike(at, 0)),
                                           e.compare(Predicate::le, at, e.splatLike(at, last)));
    Tensor zero = e.splatLike(at, 0);
    return {index, e.select(inside, weight ? weight : e.splatLike(at, 1), zero)};
  }

  // The sum over the neighbours of dimensions d and later of the rows at `so`, weighted.
  Tensor combine(const Tensor& rows, const std::vector<std::vector<Tap>>& taps, size_t d, Tap so) {
    if (d == taps.size()) {
      Tensor values = e.gatherWithin(rows, so.index);
      if (!so.weight || !values) return values;
      Shape column(so.weight.shape());
      column.push_back(1);
      return e.binary<train::MulOp>(values, e.reshape(so.weight, column));
    }
    Tensor sum;
    for (const Tap& tap : taps[d]) {
      Tensor index = tap.index;
      if (so.index) index = e.binary<train::AddOp>(e.scalar<train::MulOp>(so.index, double(x.dim(2 + d))), index);
      Tensor weight = so.weight && tap.weight ? e.binary<train::MulOp>(so.weight, tap.weight)
                                              : (so.weight ? so.weight : tap.weight);
      Tensor part = combine(rows, taps, d + 1, {index, weight});
      sum = sum ? e.binary<train::AddOp>(sum, part) : part;
      if (!sum) return {};
    }
    return sum;
  }

  Node& n;
  Emitter& e;
  Tensor x;
  StringRef mode, padding;
  bool corners = false;
};

LogicalResult gridSample(Node& n) {
  return GridSampler(n).run();
}

constexpr Operator kOperators[] = {
    {"DepthToSpace", 1, 0, 1, depthToSpace, {.sample = "f[1,4,2,3]; blocksize=2"}},
    {"SpaceToDepth", 1, 0, 1, spaceToDepth, {.sample = "f[1,1,4,4]; blocksize=2"}},
    {"CenterCropPad", 18, 0, 2, centerCropPad, {.sample = "f[5,4], {3,6}"}},
    {"Col2Im", 18, 0, 3, col2im, {.sample = "f[1,5,5], {5,5}, {1,5}"}},
    {"AffineGrid", 20, 0, 2, affineGrid, {.sample = "f[1,2,3], {1,1,2,3}"}},
    {"GridSample", 16, 0, 2, gridSample, {.sample = "f[1,1,3,3], f[1,2,2,2]"}},
};

}  // namespace

ArrayRef<Operator> imageOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
