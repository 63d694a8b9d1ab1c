// Matrix products, convolution and pooling.
#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Limits.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

LogicalResult matmul(Node& n) {
  return n.set(0, n.emit.matmul(n.input(0), n.input(1)));
}

LogicalResult gemm(Node& n) {
  Emitter& e = n.emit;
  Tensor a = n.input(0), b = n.input(1), c = n.input(2);
  if (a.rank() != 2 || b.rank() != 2) return n.error() << "takes matrices";
  Tensor product = e.matmul(a, b, n.integer("transA", 0), n.integer("transB", 0));
  if (!product) return failure();
  double alpha = n.number("alpha", 1), beta = n.number("beta", 1);
  if (alpha != 1) product = e.scalar<train::MulOp>(product, alpha);
  if (!c || beta == 0) return n.set(0, product);
  if (beta != 1) c = e.scalar<train::MulOp>(c, beta);
  // C broadcasts to the product, not the other way.
  return n.set(0, e.binary<train::AddOp>(product, e.expand(c, product.shape())));
}

// A window that moves over one to three spatial dimensions; pads hold those before, then those after.
struct Window {
  Shape kernel, strides, pads, dilations;

  size_t spatial() const { return kernel.size(); }
  // The window over dimensions [first, first + count) alone; `height`: with a dimension of size 1 in front.
  Window part(size_t first, size_t count, bool height = false) const {
    Window w;
    auto take = [&](const Shape& from, Shape& to, size_t at, int64_t one) {
      if (height) to.push_back(one);
      to.append(from.begin() + at, from.begin() + at + count);
    };
    take(kernel, w.kernel, first, 1);
    take(strides, w.strides, first, 1);
    take(dilations, w.dilations, first, 1);
    take(pads, w.pads, first, 0);
    take(pads, w.pads, first + spatial(), 0);
    return w;
  }
  // The same over one more dimension of size 1 at the end.
  Window withWidth() const {
    Window w = *this;
    for (Shape* list : {&w.kernel, &w.strides, &w.dilations}) list->push_back(1);
    w.pads.insert(w.pads.begin() + spatial(), 0);
    w.pads.push_back(0);
    return w;
  }
  int64_t span(size_t d) const { return (kernel[d] - 1) * dilations[d] + 1; }
  // How many places it takes along a dimension; with `ceil` the last may hang over the end, but starts within.
  int64_t places(size_t d, int64_t size, bool ceil) const {
    const int64_t padded = size + pads[d] + pads[d + spatial()];
    const int64_t count = (padded - span(d) + (ceil ? strides[d] - 1 : 0)) / strides[d] + 1;
    return ceil && (count - 1) * strides[d] >= size + pads[d] ? count - 1 : count;
  }
};

// `ceil`: a pooling window may hang over the end of its padded input.
std::optional<Window> window(Node& n, ArrayRef<int64_t> input, ArrayRef<int64_t> kernel, bool ceil = false) {
  size_t spatial = input.size();
  auto fail = [&](const Twine& message) { return n.error() << message, std::nullopt; };
  if (spatial < 1 || spatial > 3) return fail("one to three spatial dimensions are supported, not " + Twine(spatial));
  Window w{Shape(kernel), n.integers("strides").value_or(Shape(spatial, 1)),
           n.integers("pads").value_or(Shape(2 * spatial, 0)), n.integers("dilations").value_or(Shape(spatial, 1))};
  if (w.kernel.size() != spatial || w.strides.size() != spatial || w.pads.size() != 2 * spatial ||
      w.dilations.size() != spatial)
    return fail("kernel_shape, strides, pads and dilations must have one entry per spatial dimension (pads two)");
  constexpr int64_t kLimit = 1 << 20;
  for (const Shape* list : {&w.kernel, &w.strides, &w.dilations})
    for (int64_t v : *list)
      if (v < 1 || v > kLimit) return fail("an attribute has the value " + Twine(v) + ", which is out of range");
  for (int64_t v : w.pads)
    if (v < 0 || v > kLimit) return fail("a pad of " + Twine(v) + " is out of range");
  StringRef automatic = n.string("auto_pad", "NOTSET");
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    for (size_t d = 0; d < spatial; ++d) {
      int64_t out = (input[d] + w.strides[d] - 1) / w.strides[d];
      int64_t total = std::max<int64_t>(0, (out - 1) * w.strides[d] + w.span(d) - input[d]);
      w.pads[d] = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.pads[d + spatial] = total - w.pads[d];
    }
  } else if (automatic == "VALID") {
    w.pads.assign(2 * spatial, 0);
  } else if (automatic != "NOTSET") {
    return fail("auto_pad '" + automatic + "' is not supported");
  }
  for (size_t d = 0; d < spatial; ++d) {
    const int64_t padded = input[d] + w.pads[d] + w.pads[d + spatial];
    if (padded >= w.span(d)) continue;
    if (!ceil || padded <= 0 || w.span(d) - padded >= w.strides[d])
      return fail("the window is larger than its padded input");
    // The window has one place and sees all of the padded input, as in a global pooling. A dilated kernel may end
    // before the input does; the larger stride then prevents a second place.
    w.kernel[d] = (padded - 1) / w.dilations[d] + 1;
    if (w.span(d) < padded) w.strides[d] = std::max(w.strides[d], padded);
  }
  return w;
}

// A convolution of [N, C, ...] with one to three spatial dimensions.
Tensor convolve(Emitter& e, const Tensor& x, const Tensor& filter, const Window& w, int64_t groups) {
  if (!x || !filter) return {};
  auto planar = [&](const Tensor& input, const Tensor& f, const Window& v) -> Tensor {
    if (!input || !f) return {};
    Tensor result = Value(train::ConvOp::create(e.ops(), e.location(), e.materialize(input), e.materialize(f),
                                                v.strides, v.pads, v.dilations, groups));
    return e.checkShape(result.shape()) ? result : Tensor();
  };
  const int64_t batch = x.dim(0), channels = x.dim(1), out = filter.dim(0), perGroup = filter.dim(1);
  if (w.spatial() == 2) return planar(x, filter, w);
  if (w.spatial() == 1) {
    Tensor y = planar(e.reshape(x, {batch, channels, 1, x.dim(2)}),
                      e.reshape(filter, {out, perGroup, 1, filter.dim(2)}), w.part(0, 1, true));
    return y ? e.reshape(y, {y.dim(0), y.dim(1), y.dim(3)}) : Tensor();
  }
  // The filter's planes as more channels, and the result's planes as more rows of the batch.
  const int64_t planes = filter.dim(2), height = x.dim(3), width = x.dim(4), depth = w.places(0, x.dim(2), false);
  Tensor padded = e.pad(x, {0, 0, w.pads[0], 0, 0}, {0, 0, w.pads[3], 0, 0});
  SmallVector<Tensor> taps;
  for (int64_t k = 0; k < planes; ++k) {
    Tensor tap = e.sliceAlong(padded, 2, k * w.dilations[0], depth, w.strides[0]);
    taps.push_back(e.reshape(e.transpose(tap, {0, 2, 1, 3, 4}), {batch * depth, groups, 1, perGroup, height * width}));
  }
  Tensor rows = e.reshape(e.concat(taps, 2), {batch * depth, channels * planes, height, width});
  Tensor flat = e.reshape(e.transpose(filter, {0, 2, 1, 3, 4}), {out, planes * perGroup, filter.dim(3), filter.dim(4)});
  Tensor y = planar(rows, flat, w.part(1, 2));
  if (!y) return {};
  return e.transpose(e.reshape(y, {batch, depth, out, y.dim(2), y.dim(3)}), {0, 2, 1, 3, 4});
}

LogicalResult checkGroups(Node& n, const Tensor& x, const Tensor& filter, int64_t groups) {
  if (groups >= 1 && filter.dim(0) % groups == 0 && x.dim(1) % groups == 0 && filter.dim(1) == x.dim(1) / groups)
    return success();
  n.emit.mismatch(std::to_string(x.dim(1)) + " channels do not fit a filter of " + std::to_string(filter.dim(0)) +
                  " by " + std::to_string(filter.dim(1)) + " in " + std::to_string(groups) + " groups");
  return failure();
}

LogicalResult conv(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), filter = n.input(1), bias = n.input(2);
  if (x.rank() < 3 || filter.rank() != x.rank() || x.elementType() != filter.elementType() || !x.isFloat())
    return n.error()
           << "the input has two dimensions before the spatial ones, and the filter its rank and element type";
  const int64_t groups = n.integer("group", 1);
  if (failed(checkGroups(n, x, filter, groups))) return failure();
  auto kernel = n.integers("kernel_shape");
  if (kernel && ArrayRef<int64_t>(*kernel) != filter.shape().drop_front(2))
    return n.error() << "kernel_shape differs from the filter's";
  auto w = window(n, x.shape().drop_front(2), filter.shape().drop_front(2));
  if (!w) return failure();
  // Each plane of the filter takes some ops of the graph.
  if (w->spatial() == 3 && failed(n.importer.countParts(filter.dim(2)))) return failure();
  Tensor result = convolve(e, x, filter, *w, groups);
  if (bias) {
    if (bias.rank() != 1 || bias.dim(0) != filter.dim(0))
      return n.error() << "the bias must have one element per output channel";
    Shape channel(x.rank(), 1);
    channel[1] = bias.dim(0);
    result = e.binary<train::AddOp>(result, e.reshape(bias, channel));
  }
  return n.set(0, result);
}

// Pooling by a function of planes [N, C, H, W]; three dimensions are pooled in two turns, each of planes.
using PoolPlanes = llvm::function_ref<Tensor(const Tensor&, const Window&)>;
Tensor pool(Emitter& e, const Tensor& x, const Window& w, PoolPlanes planes) {
  if (!x) return {};
  if (w.spatial() == 2) return planes(x, w);
  if (w.spatial() == 1) {
    Tensor y = planes(e.reshape(x, {x.dim(0), x.dim(1), 1, x.dim(2)}), w.part(0, 1, true));
    return y ? e.reshape(y, {y.dim(0), y.dim(1), y.dim(3)}) : Tensor();
  }
  Tensor y = planes(e.reshape(x, {x.dim(0), x.dim(1) * x.dim(2), x.dim(3), x.dim(4)}), w.part(1, 2));
  if (!y) return {};
  const int64_t height = y.dim(2), width = y.dim(3);
  y = planes(e.reshape(y, {x.dim(0), x.dim(1), x.dim(2), height * width}), w.part(0, 1).withWidth());
  return y ? e.reshape(y, {x.dim(0), x.dim(1), y.dim(2), height, width}) : Tensor();
}

// The window of a pooling operator on x; nothing after an error.
std::optional<Window> poolingWindow(Node& n, const Tensor& x) {
  if (!x.isFloat() || x.rank() < 3) return n.error() << "takes floating-point numbers [N, C, ...]", std::nullopt;
  return window(n, x.shape().drop_front(2), n.integers("kernel_shape").value_or(Shape()), n.integer("ceil_mode", 0));
}

// The positions of maxima in their planes, as positions in the whole tensor: row by row, or column by column.
Tensor inTensor(Emitter& e, const Tensor& position, int64_t height, int64_t width, bool columns) {
  if (!position) return {};
  Type type = position.elementType();
  auto times = [&](const Tensor& x, int64_t y) { return e.scalar<train::MulOp>(x, double(y)); };
  Tensor at = position;
  if (columns) {
    Tensor row = e.scalar<train::DivOp>(position, double(width));
    Tensor column = e.binary<train::SubOp>(position, times(row, width));
    at = e.binary<train::AddOp>(times(column, height), row);
  }
  const int64_t channels = position.dim(1), plane = height * width;
  Tensor image = times(e.iota(type, {position.dim(0), 1, 1, 1}, 0), channels * plane),
         channel = times(e.iota(type, {1, channels, 1, 1}, 1), plane);
  return e.binary<train::AddOp>(at, e.binary<train::AddOp>(image, channel));
}

LogicalResult maxPool(Node& n) {
  Emitter& e = n.emit;
  // Floats hold integers of 8 bits exactly.
  Tensor x = n.input(0);
  const bool bytes = !x.isFloat() && x.elementType().getIntOrFloatBitWidth() == 8;
  if (bytes) x = e.cast(x, e.ops().getF32Type());
  auto w = poolingWindow(n, x);
  if (!w) return failure();
  const bool ceil = n.integer("ceil_mode", 0), columns = n.integer("storage_order", 0);
  if (n.uses(1)) {
    if (w->spatial() > 2) return n.error() << "the indices of maxima in three dimensions are not supported";
    Tensor at = pool(e, x, *w, [&](const Tensor& planes, const Window& v) -> Tensor {
      Value indices = train::MaxPoolIndicesOp::create(e.ops(), e.location(), e.materialize(planes), v.kernel, v.strides,
                                                      v.pads, v.dilations, ceil);
      return inTensor(e, indices, planes.dim(2), planes.dim(3), columns);
    });
    if (failed(n.set(1, at))) return failure();
  }
  Tensor result = pool(e, x, *w, [&](const Tensor& planes, const Window& v) -> Tensor {
    return Value(train::MaxPoolOp::create(e.ops(), e.location(), e.materialize(planes), v.kernel, v.strides, v.pads,
                                          v.dilations, ceil));
  });
  return n.set(0, bytes ? e.cast(result, n.input(0).elementType()) : result);
}

// The sum over each window: a convolution of each channel with ones.
Tensor windowSums(Node& n, const Tensor& x, Window w) {
  Emitter& e = n.emit;
  // Adds zeros for a window that hangs over the end, and drops padding after the last window, which would make room for
  // another one.
  for (size_t d = 0; n.integer("ceil_mode", 0) && d < w.spatial(); ++d) {
    const int64_t end = (w.places(d, x.dim(2 + d), true) - 1) * w.strides[d] + w.span(d);
    w.pads[d + w.spatial()] = std::max<int64_t>(0, end - x.dim(2 + d) - w.pads[d]);
  }
  return pool(e, x, w, [&](const Tensor& planes, const Window& v) -> Tensor {
    if (!e.checkShape({planes.dim(1), v.kernel[0], v.kernel[1]})) return {};
    Tensor ones = e.splat(x.elementType(), {planes.dim(1), 1, v.kernel[0], v.kernel[1]}, 1);
    return convolve(e, planes, ones, v, planes.dim(1));
  });
}

LogicalResult averagePool(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  auto w = poolingWindow(n, x);
  if (!w) return failure();
  // How many elements each window sees: along one dimension times along the others.
  const bool ceil = n.integer("ceil_mode", 0), padding = n.integer("count_include_pad", 0);
  Tensor count = e.splat(x.elementType(), {}, 1);
  for (size_t d = 0; d < w->spatial(); ++d) {
    const int64_t size = x.dim(2 + d), low = padding ? -w->pads[d] : 0,
                  high = padding ? size + w->pads[d + w->spatial()] : size;
    if (size > kMaxTable) return n.error() << "a size of " << size << " is out of range";
    std::vector<double> seen(w->places(d, size, ceil));
    for (size_t i = 0; i < seen.size(); ++i) {
      const int64_t first = int64_t(i) * w->strides[d] - w->pads[d];
      // Of the window's elements, how many come before a position.
      auto before = [&](int64_t at) {
        const int64_t step = w->dilations[d];
        return at <= first ? 0 : std::min(w->kernel[d], (at - first + step - 1) / step);
      };
      seen[i] = double(before(high) - before(low));
    }
    Shape aligned(x.rank(), 1);
    aligned[2 + d] = seen.size();
    count = e.binary<train::MulOp>(count, e.floats(x.elementType(), aligned, seen));
  }
  return n.set(0, e.binary<train::DivOp>(windowSums(n, x, *w), count));
}

LogicalResult lpPool(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  const int64_t p = n.integer("p", 2);
  if (p < 1) return n.error() << "p is " << p << "; it takes 1 or more";
  auto w = poolingWindow(n, x);
  if (!w) return failure();
  return n.set(0, rootOfPowers(e, windowSums(n, absolutePower(e, x, p), *w), p));
}

// One spatial dimension as two; three are refused.
bool makePlanar(Node& n, Window& w, std::initializer_list<Tensor*> tensors) {
  if (w.spatial() > 2) return n.error() << "three spatial dimensions are not supported", false;
  if (w.spatial() == 2) return true;
  w = w.part(0, 1, true);
  for (Tensor* x : tensors) *x = n.emit.reshape(*x, {x->dim(0), x->dim(1), 1, x->dim(2)});
  return true;
}

// Whether a gradient is of `channels` planes of the places that the window takes in x.
LogicalResult checkGradient(Node& n, const Tensor& gradient, const Tensor& x, int64_t channels, const Window& w,
                            bool ceil) {
  Shape shape{x.dim(0), channels};
  for (size_t d = 0; d < w.spatial(); ++d) shape.push_back(w.places(d, x.dim(2 + d), ceil));
  if (gradient.shape() == ArrayRef<int64_t>(shape) && gradient.elementType() == x.elementType()) return success();
  return n.error() << "the gradient does not have the result's shape and type";
}

// (dY, X, W) -> dX, dW, d bias: as ONNX Runtime writes the gradient of Conv.
LogicalResult convGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor gradient = n.input(0), x = n.input(1), filter = n.input(2);
  if (x.rank() < 3 || filter.rank() != x.rank() || gradient.rank() != x.rank() || !x.isFloat() ||
      filter.elementType() != x.elementType())
    return n.error() << "gradient, input and filter must have one rank and one floating-point type";
  const int64_t groups = n.integer("group", 1);
  if (failed(checkGroups(n, x, filter, groups))) return failure();
  auto w = window(n, x.shape().drop_front(2), filter.shape().drop_front(2));
  if (!w || failed(checkGradient(n, gradient, x, filter.dim(0), *w, false)) ||
      !makePlanar(n, *w, {&gradient, &x, &filter}))
    return failure();
  Value dy = e.materialize(gradient);
  if (n.uses(0)) {
    Value result = train::ConvGradInputOp::create(e.ops(), e.location(), x.type(), dy, e.materialize(filter),
                                                  w->strides, w->pads, w->dilations, groups);
    if (failed(n.set(0, e.reshape(result, n.input(1).shape())))) return failure();
  }
  if (n.uses(1)) {
    Value result = train::ConvGradFilterOp::create(e.ops(), e.location(), filter.type(), e.materialize(x), dy,
                                                   w->strides, w->pads, w->dilations, groups);
    if (failed(n.set(1, e.reshape(result, n.input(2).shape())))) return failure();
  }
  if (!n.uses(2)) return success();
  return n.set(2, e.reshape(e.reduce(train::ReduceKind::sum, gradient, {0, 2, 3}), {gradient.dim(1)}));
}

// (dY, X): X takes the place of the indices of the maxima (TrainingArtifacts.cpp).
LogicalResult maxPoolGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor gradient = n.input(0), x = n.input(1);
  if (!x.isFloat() || gradient.rank() != x.rank())
    return n.error() << "takes the input of its MaxPool in place of the indices";
  const bool ceil = n.integer("ceil_mode", 0);
  auto w = poolingWindow(n, x);
  if (!w || failed(checkGradient(n, gradient, x, x.dim(1), *w, ceil)) || !makePlanar(n, *w, {&gradient, &x}))
    return failure();
  Value result =
      train::MaxPoolGradOp::create(e.ops(), e.location(), x.type(), e.materialize(x), e.materialize(gradient),
                                   w->kernel, w->strides, w->pads, w->dilations, ceil);
  return n.set(0, e.reshape(result, n.input(1).shape()));
}

constexpr Operator kOperators[] = {
    {"ConvGrad",
     1,
     0,
     3,
     convGrad,
     {.domain = "com.microsoft",
      .sample = "f[1,4,3,3], f[1,2,5,5], f[4,2,3,3]",
      .limits = "one or two spatial dimensions"}},
    {"MaxPoolGrad",
     1,
     0,
     2,
     maxPoolGrad,
     {.sample = "f[1,2,2,2], f[1,2,4,4]; kernel_shape=[2,2] strides=[2,2]",
      .limits = "one or two spatial dimensions",
      .noGradient = {"", "it is of a backward pass"}}},
    {"MatMul", 1, 0, 2, matmul, {.sample = "f[2,3], f[3,4]"}},
    {"Gemm", 7, 0, 2, gemm, {.sample = "f[2,3], f[3,4], f[4]"}},
    {"Conv", 1, 0, 2, conv, {.sample = "f[1,2,5,5], f[4,2,3,3], f[4]", .limits = "one to three spatial dimensions"}},
    {"MaxPool",
     1,
     0,
     1,
     maxPool,
     {.sample = "f[1,2,4,4]; kernel_shape=[2,2]",
      .limits = "one to three spatial dimensions, with indices one or two"}},
    {"AveragePool",
     7,
     0,
     1,
     averagePool,
     {.sample = "f[1,2,4,4]; kernel_shape=[2,2]", .limits = "one to three spatial dimensions"}},
    {"LpPool",
     2,
     0,
     1,
     lpPool,
     {.sample = "f[1,2,4,4]; kernel_shape=[2,2]", .limits = "one to three spatial dimensions"}},
};

}  // namespace

ArrayRef<Operator> productOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
