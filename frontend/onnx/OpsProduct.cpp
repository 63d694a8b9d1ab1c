// Matrix products, convolution and pooling.
#include "frontend/onnx/Importer.h"

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

// Strides, pads and dilations of a window over `spatial` dimensions, extended to two: one dimension is height 1.
struct Window {
  Shape kernel, strides, pads, dilations;
};

std::optional<Window> window(Node& n, ArrayRef<int64_t> input, ArrayRef<int64_t> kernel) {
  size_t spatial = input.size();
  auto fail = [&](const Twine& message) { return n.error() << message, std::nullopt; };
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
      int64_t total =
          std::max<int64_t>(0, (out - 1) * w.strides[d] + (w.kernel[d] - 1) * w.dilations[d] + 1 - input[d]);
      w.pads[d] = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.pads[d + spatial] = total - w.pads[d];
    }
  } else if (automatic == "VALID") {
    w.pads.assign(2 * spatial, 0);
  } else if (automatic != "NOTSET") {
    return fail("auto_pad '" + automatic + "' is not supported");
  }
  for (size_t d = 0; d < spatial; ++d)
    if (input[d] + w.pads[d] + w.pads[d + spatial] < (w.kernel[d] - 1) * w.dilations[d] + 1)
      return fail("the window is larger than its padded input");
  if (spatial == 1) {
    w.kernel.insert(w.kernel.begin(), 1);
    w.strides.insert(w.strides.begin(), 1);
    w.dilations.insert(w.dilations.begin(), 1);
    w.pads = {0, w.pads[0], 0, w.pads[1]};
  }
  return w;
}

// [N, C, L] as [N, C, 1, L]; anything but one or two spatial dimensions is refused.
Tensor planar(Node& n, const Tensor& x) {
  if (x.rank() == 4) return x;
  if (x.rank() == 3) return n.emit.reshape(x, {x.dim(0), x.dim(1), 1, x.dim(2)});
  return n.error() << "only one and two spatial dimensions are supported", Tensor();
}

// Back to the rank of the operator's input.
Tensor unplanar(Node& n, const Tensor& y, int64_t rank) {
  return y && rank == 3 ? n.emit.reshape(y, {y.dim(0), y.dim(1), y.dim(3)}) : y;
}

LogicalResult conv(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), filter = n.input(1), bias = n.input(2);
  Tensor input = planar(n, x);
  if (!input) return failure();
  if (filter.rank() != x.rank() || x.elementType() != filter.elementType() || !x.isFloat())
    return n.error() << "the filter must have the input's rank and element type";
  int64_t groups = n.integer("group", 1);
  if (groups < 1 || filter.dim(0) % groups || x.dim(1) % groups || filter.dim(1) != x.dim(1) / groups)
    return n.error() << x.dim(1) << " channels do not fit a filter of " << filter.dim(0) << " by " << filter.dim(1)
                     << " in " << groups << " groups";
  auto kernel = n.integers("kernel_shape");
  if (kernel && ArrayRef<int64_t>(*kernel) != filter.shape().drop_front(2))
    return n.error() << "kernel_shape differs from the filter's";
  auto w = window(n, x.shape().drop_front(2), filter.shape().drop_front(2));
  if (!w) return failure();
  Tensor result =
      Value(train::ConvOp::create(e.ops(), e.location(), e.materialize(input), e.materialize(planar(n, filter)),
                                  w->strides, w->pads, w->dilations, groups));
  if (!e.checkShape(result.shape())) return failure();
  if (bias) {
    if (bias.rank() != 1 || bias.dim(0) != filter.dim(0))
      return n.error() << "the bias must have one element per output channel";
    result = e.binary<train::AddOp>(result, e.reshape(bias, {1, bias.dim(0), 1, 1}));
  }
  return n.set(0, unplanar(n, result, x.rank()));
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
  Tensor x = n.input(0), input = planar(n, x);
  if (!input) return failure();
  Type element = x.elementType();
  // Integers of 8 bits are the same in f32.
  if (!x.isFloat() && element.getIntOrFloatBitWidth() == 8) input = e.cast(input, e.ops().getF32Type());
  if (!input || !input.isFloat()) return n.error() << "takes floating-point numbers, or integers of 8 bits";
  auto w = window(n, x.shape().drop_front(2), n.integers("kernel_shape").value_or(Shape()));
  if (!w) return failure();
  const bool ceil = n.integer("ceil_mode", 0) != 0;
  Value v = e.materialize(input);
  if (n.uses(1)) {
    auto indices =
        train::MaxPoolIndicesOp::create(e.ops(), e.location(), v, w->kernel, w->strides, w->pads, w->dilations, ceil);
    Tensor at = inTensor(e, indices.getResult(), input.dim(2), input.dim(3), n.integer("storage_order", 0) != 0);
    if (failed(n.set(1, unplanar(n, at, x.rank())))) return failure();
  }
  auto op = train::MaxPoolOp::create(e.ops(), e.location(), v, w->kernel, w->strides, w->pads, w->dilations, ceil);
  return n.set(0, e.cast(unplanar(n, op.getResult(), x.rank()), element));
}

// A convolution of each channel with a constant filter.
LogicalResult averagePool(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), input = planar(n, x);
  if (!input) return failure();
  if (!x.isFloat()) return n.error() << "takes floating-point numbers";
  if (n.integer("ceil_mode", 0)) return n.error() << "ceil_mode is not supported";
  auto w = window(n, x.shape().drop_front(2), n.integers("kernel_shape").value_or(Shape()));
  if (!w) return failure();
  if (!e.checkShape({x.dim(1), w->kernel[0], w->kernel[1]})) return failure();
  auto sums = [&](const Tensor& of) -> Tensor {
    Tensor ones = e.splat(x.elementType(), {of.dim(1), 1, w->kernel[0], w->kernel[1]}, 1);
    return Value(train::ConvOp::create(e.ops(), e.location(), e.materialize(of), e.materialize(ones), w->strides,
                                       w->pads, w->dilations, of.dim(1)));
  };
  bool padded = llvm::any_of(w->pads, [](int64_t p) { return p != 0; });
  Tensor count = e.splat(x.elementType(), {}, double(w->kernel[0] * w->kernel[1]));
  // Where padding does not count, divide by how many elements of the input each window sees.
  if (padded && !n.integer("count_include_pad", 0)) {
    Shape one{1, 1, input.dim(2), input.dim(3)};
    count = sums(e.splat(x.elementType(), one, 1));
  }
  return n.set(0, unplanar(n, e.binary<train::DivOp>(sums(input), count), x.rank()));
}

// (dY, X, W) -> dX, dW, d bias: as ONNX Runtime writes the gradient of Conv.
LogicalResult convGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(1), filter = n.input(2), gradient = planar(n, n.input(0)), input = planar(n, x);
  if (!gradient || !input) return failure();
  if (filter.rank() != x.rank() || !x.isFloat()) return n.error() << "the filter must have the input's rank";
  auto w = window(n, x.shape().drop_front(2), filter.shape().drop_front(2));
  if (!w) return failure();
  Tensor planarFilter = planar(n, filter);
  const int64_t groups = n.integer("group", 1);
  Value dy = e.materialize(gradient);
  if (n.uses(0)) {
    Value result = train::ConvGradInputOp::create(e.ops(), e.location(), input.type(), dy, e.materialize(planarFilter),
                                                  w->strides, w->pads, w->dilations, groups);
    if (failed(n.set(0, unplanar(n, result, x.rank())))) return failure();
  }
  if (n.uses(1)) {
    Value result = train::ConvGradFilterOp::create(e.ops(), e.location(), planarFilter.type(), e.materialize(input), dy,
                                                   w->strides, w->pads, w->dilations, groups);
    if (failed(n.set(1, unplanar(n, result, x.rank())))) return failure();
  }
  if (!n.uses(2)) return success();
  return n.set(2, e.reshape(e.reduce(train::ReduceKind::sum, gradient, {0, 2, 3}), {gradient.dim(1)}));
}

// (dY, X): X takes the place of the indices of the maxima (TrainingArtifacts.cpp).
LogicalResult maxPoolGrad(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(1), gradient = planar(n, n.input(0)), input = planar(n, x);
  if (!gradient || !input) return failure();
  if (!x.isFloat()) return n.error() << "takes the input of its MaxPool in place of the indices";
  auto w = window(n, x.shape().drop_front(2), n.integers("kernel_shape").value_or(Shape()));
  if (!w) return failure();
  Value result =
      train::MaxPoolGradOp::create(e.ops(), e.location(), input.type(), e.materialize(input), e.materialize(gradient),
                                   w->kernel, w->strides, w->pads, w->dilations, n.integer("ceil_mode", 0) != 0);
  return n.set(0, unplanar(n, result, x.rank()));
}

constexpr Operator kOperators[] = {
    {"ConvGrad", 1, 0, 3, convGrad, false, "com.microsoft"},
    {"MaxPoolGrad", 1, 0, 2, maxPoolGrad},
    {"MatMul", 1, 0, 2, matmul},
    {"Gemm", 7, 0, 2, gemm},
    {"Conv", 1, 0, 2, conv},
    {"MaxPool", 1, 0, 1, maxPool},
    {"AveragePool", 7, 0, 1, averagePool},
};

}  // namespace

ArrayRef<Operator> productOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
