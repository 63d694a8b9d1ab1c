// Convolutions and max pooling backwards, as operators: ConvTranspose and MaxUnpool.
#include "frontend/onnx/importer/Importer.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Where a window's dimension lies in a transposed convolution: what is cut off its result before and after it, and
// zeros that are appended. auto_pad and output_shape say the size of the result instead of the padding.
struct Transposed {
  Shape low, high, zeros;
};

std::optional<Transposed> transposedPads(Node& n, ArrayRef<int64_t> input, ArrayRef<int64_t> kernel,
                                         ArrayRef<int64_t> strides, ArrayRef<int64_t> dilations) {
  const size_t spatial = input.size();
  auto fail = [&](const Twine& message) { return n.error() << message, std::nullopt; };
  Shape pads = n.integers("pads").value_or(Shape(2 * spatial, 0));
  Shape further = n.integers("output_padding").value_or(Shape(spatial, 0));
  std::optional<Shape> output = n.integers("output_shape");
  // Some exporters give all dimensions.
  if (output && output->size() == spatial + 2) output->erase(output->begin(), output->begin() + 2);
  if (pads.size() != 2 * spatial || further.size() != spatial || (output && output->size() != spatial))
    return fail("output_shape and output_padding must have one entry per spatial dimension, pads two");
  constexpr int64_t kLimit = 1 << 20;
  for (ArrayRef<int64_t> list : {ArrayRef<int64_t>(pads), ArrayRef<int64_t>(further)})
    for (int64_t v : list)
      if (v < 0 || v > kLimit) return fail("a pad of " + Twine(v) + " is out of range");
  StringRef automatic = n.string("auto_pad", "NOTSET");
  const bool same = automatic == "SAME_UPPER" || automatic == "SAME_LOWER";
  if (!same && automatic != "VALID" && automatic != "NOTSET")
    return fail("auto_pad '" + automatic + "' is not supported");
  if (automatic == "VALID") pads.assign(2 * spatial, 0);
  Transposed result;
  for (size_t d = 0; d < spatial; ++d) {
    const int64_t whole = (input[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 + further[d];
    int64_t low = pads[d], high = pads[d + spatial];
    if (output || same) {
      const int64_t size = output ? (*output)[d] : input[d] * strides[d];
      if (size < 1 || size > kMaxElements) return fail("an output of size " + Twine(size) + " is out of range");
      const int64_t total = whole - size;
      const int64_t less = std::max<int64_t>(total, 0) / 2;
      // Before opset 11 the odd one of output_shape is on the other side.
      const bool lessBefore = (automatic == "SAME_UPPER") != (output && n.opset < 11);
      low = lessBefore ? less : std::max<int64_t>(total, 0) - less;
      high = total - low;
    }
    if (whole - low - high < 1) return fail("the result has no elements");
    // Further elements are first those that would be cut off.
    high -= further[d];
    result.low.push_back(low);
    result.high.push_back(std::max<int64_t>(high, 0));
    result.zeros.push_back(std::max<int64_t>(-high, 0));
  }
  return result;
}

// A transposed convolution of planes [N, C, H, W] with a filter [C, M / groups, h, w]: the gradient of the input of a
// convolution with that filter.
Tensor transposePlanes(Emitter& e, const Tensor& x, const Tensor& filter, ArrayRef<int64_t> sizes,
                       ArrayRef<int64_t> strides, ArrayRef<int64_t> dilations, const Transposed& pads, int64_t groups) {
  if (!x || !filter) return {};
  Shape shape{x.dim(0), filter.dim(1) * groups, sizes[0], sizes[1]};
  if (!e.checkShape(shape)) return {};
  const Shape around{pads.low[0], pads.low[1], pads.high[0], pads.high[1]};
  auto type = RankedTensorType::get(shape, x.elementType());
  return Value(train::ConvGradInputOp::create(e.ops(), e.location(), type, e.materialize(x), e.materialize(filter),
                                              strides, around, dilations, groups));
}

// The same of volumes [N, C, D, H, W]: the filter's planes are more channels, and the input's planes more rows of the
// batch. The results of each plane of the filter are then moved to their depth and added.
Tensor transposeVolumes(Emitter& e, const Tensor& x, const Tensor& filter, ArrayRef<int64_t> sizes,
                        ArrayRef<int64_t> strides, ArrayRef<int64_t> dilations, const Transposed& pads,
                        int64_t groups) {
  const int64_t batch = x.dim(0), depth = x.dim(2), perGroup = filter.dim(1), planes = filter.dim(2);
  const int64_t plane = sizes[1] * sizes[2], channels = groups * perGroup;
  Tensor rows = e.reshape(e.transpose(x, {0, 2, 1, 3, 4}), {batch * depth, x.dim(1), x.dim(3), x.dim(4)});
  Tensor flat =
      e.reshape(e.transpose(filter, {0, 2, 1, 3, 4}), {filter.dim(0), planes * perGroup, filter.dim(3), filter.dim(4)});
  const Transposed inner{{pads.low[1], pads.low[2]}, {pads.high[1], pads.high[2]}, {}};
  Tensor each = e.reshape(
      transposePlanes(e, rows, flat, sizes.drop_front(), strides.drop_front(), dilations.drop_front(), inner, groups),
      {batch, depth, groups, planes, perGroup * plane});
  Tensor sum;
  for (int64_t k = 0; k < planes && each; ++k) {
    Tensor moved = e.reshape(e.sliceAlong(each, 3, k, 1), {batch, depth, channels * plane});
    moved = e.pad(moved, {0, k * dilations[0], 0}, {0, (planes - 1 - k) * dilations[0], 0}, {0, strides[0] - 1, 0});
    sum = sum ? e.binary<train::AddOp>(sum, moved) : moved;
  }
  sum = e.sliceAlong(sum, 1, pads.low[0], sizes[0]);
  return e.transpose(e.reshape(sum, {batch, sizes[0], channels, sizes[1], sizes[2]}), {0, 2, 1, 3, 4});
}

LogicalResult convTranspose(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), filter = n.input(1), bias = n.input(2);
  if (x.rank() < 3 || x.rank() > 5) return n.error() << "one to three spatial dimensions are supported";
  if (filter.rank() != x.rank() || x.elementType() != filter.elementType() || !x.isFloat())
    return n.error() << "the filter must have the input's rank and element type";
  int64_t groups = n.integer("group", 1);
  if (groups < 1 || x.dim(1) % groups || filter.dim(0) != x.dim(1))
    return n.error() << x.dim(1) << " channels do not fit a filter of " << filter.dim(0) << " in " << groups
                     << " groups";
  auto kernel = n.integers("kernel_shape");
  if (kernel && ArrayRef<int64_t>(*kernel) != filter.shape().drop_front(2))
    return n.error() << "kernel_shape differs from the filter's";
  const size_t spatial = x.rank() - 2;
  Shape strides = n.integers("strides").value_or(Shape(spatial, 1)),
        dilations = n.integers("dilations").value_or(Shape(spatial, 1));
  if (strides.size() != spatial || dilations.size() != spatial)
    return n.error() << "strides and dilations must have one entry per spatial dimension";
  for (const Shape* list : {&strides, &dilations})
    for (int64_t v : *list)
      if (v < 1 || v > (1 << 20)) return n.error() << "an attribute has the value " << v << ", which is out of range";
  // Each plane of the filter takes some ops of the graph.
  constexpr int64_t kMostPlanes = 256;
  if (spatial == 3 && filter.dim(2) > kMostPlanes)
    return n.error() << "a filter of " << filter.dim(2) << " planes is not supported, but at most " << kMostPlanes;
  auto pads = transposedPads(n, x.shape().drop_front(2), filter.shape().drop_front(2), strides, dilations);
  if (!pads) return failure();
  // One dimension is height 1.
  Tensor input = x, window = filter;
  if (spatial == 1) {
    input = e.reshape(x, {x.dim(0), x.dim(1), 1, x.dim(2)});
    window = e.reshape(filter, {filter.dim(0), filter.dim(1), 1, filter.dim(2)});
    for (Shape* list : {&strides, &dilations}) list->insert(list->begin(), 1);
    for (Shape* list : {&pads->low, &pads->high, &pads->zeros}) list->insert(list->begin(), 0);
  }
  const int64_t channels = filter.dim(1) * groups;
  Shape sizes, zeros{0, 0};
  for (size_t d = 0; d < strides.size(); ++d) {
    sizes.push_back((input.dim(2 + d) - 1) * strides[d] + (window.dim(2 + d) - 1) * dilations[d] + 1 - pads->low[d] -
                    pads->high[d]);
    zeros.push_back(pads->zeros[d]);
    if (sizes[d] < 1) return n.error() << "the pads are larger than the result";
  }
  auto transposed = spatial == 3 ? transposeVolumes : transposePlanes;
  Tensor result = transposed(e, input, window, sizes, strides, dilations, *pads, groups);
  result = e.pad(result, Shape(zeros.size(), 0), zeros);
  if (!result) return failure();
  if (bias) {
    if (bias.rank() != 1 || bias.dim(0) != channels)
      return n.error() << "the bias must have one element per output channel";
    Shape channel(result.rank(), 1);
    channel[1] = channels;
    result = e.binary<train::AddOp>(result, e.reshape(bias, channel));
  }
  if (result && spatial == 1) result = e.reshape(result, {result.dim(0), result.dim(1), result.dim(3)});
  return n.set(0, result);
}

// Puts elements where MaxPool's indices say, into zeros.
LogicalResult maxUnpool(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), indices = n.input(1);
  if (x.rank() < 3 || indices.shape() != x.shape()) return n.error() << "takes elements [N, C, ...] and their indices";
  const size_t spatial = x.rank() - 2;
  Shape kernel = n.integers("kernel_shape").value_or(Shape()),
        strides = n.integers("strides").value_or(Shape(spatial, 1)),
        pads = n.integers("pads").value_or(Shape(2 * spatial, 0));
  if (kernel.size() != spatial || strides.size() != spatial || pads.size() != 2 * spatial)
    return n.error() << "kernel_shape, strides and pads must have one entry per spatial dimension (pads two)";
  for (const Shape* list : {&kernel, &strides, &pads})
    for (int64_t v : *list)
      if (v < (list == &pads ? 0 : 1) || v > (1 << 20))
        return n.error() << "an attribute has the value " << v << ", which is out of range";
  Shape shape(x.shape());
  int64_t plane = 1, elements = x.count() / std::max<int64_t>(x.dim(0) * x.dim(1), 1);
  for (size_t d = 0; d < spatial; ++d) {
    shape[2 + d] = (x.dim(2 + d) - 1) * strides[d] - pads[d] - pads[d + spatial] + kernel[d];
    if (shape[2 + d] < 1) return n.error() << "the result has no elements";
  }
  if (!e.checkShape(shape)) return failure();
  for (int64_t size : ArrayRef<int64_t>(shape).drop_front(2)) plane *= size;
  const Shape planes{x.dim(0), x.dim(1), elements};
  Tensor at = e.reshape(e.cast(indices, e.ops().getI64Type()), planes);
  at = at ? e.mod(at, e.splat(at.elementType(), {}, double(plane)), false) : at;
  Tensor result = e.reshape(e.scatterIntoZeros({x.dim(0), x.dim(1), plane}, at, e.reshape(x, planes), 2), shape);
  if (!n.input(2)) return n.set(0, result);
  // The indices count in the size that follows from the attributes; what output_shape has beyond is zero.
  auto output = n.knownIntegers(2, "output_shape");
  if (!output || !result) return failure();
  if (output->size() != shape.size()) return n.error() << "output_shape must have one entry per dimension";
  Shape beyond;
  for (size_t d = 0; d < shape.size(); ++d) {
    if ((*output)[d] < shape[d]) return n.error() << "output_shape is smaller than the result";
    beyond.push_back((*output)[d] - shape[d]);
  }
  return n.set(0, e.pad(result, Shape(shape.size(), 0), beyond));
}

constexpr Operator kOperators[] = {
    {"ConvTranspose",
     1,
     0,
     2,
     convTranspose,
     {.sample = "f[1,2,3,3], f[2,3,3,3]", .limits = "one to three spatial dimensions"}},
    {"MaxUnpool", 9, 0, 2, maxUnpool, {.sample = "f[1,1,2,2], i[1,1,2,2]; kernel_shape=[2,2] strides=[2,2]"}},
};

}  // namespace

ArrayRef<Operator> transposedOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
