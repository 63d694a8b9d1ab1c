// Signals and recurrences that are sums: windows, Fourier transforms, running products, causal convolution.
#include <cmath>
#include <numbers>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Limits.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// The only element of an input that decides shapes.
std::optional<int64_t> knownInteger(Node& n, int64_t i, StringRef what, int64_t low, int64_t high) {
  auto values = n.knownIntegers(i, what);
  if (!values) return std::nullopt;
  if (values->size() == 1 && values->front() >= low && values->front() <= high) return values->front();
  n.error() << what << " is not one number from " << low << " to " << high;
  return std::nullopt;
}

constexpr int64_t kMaxLength = 1 << 20;

// Sum over k of coefficients[k] * cos(2 pi k i / N).
LogicalResult window(Node& n, ArrayRef<double> coefficients) {
  auto size = knownInteger(n, 0, "the size", 0, kMaxLength);
  if (!size) return failure();
  Type type = elementType(n.emit.context(), int32_t(n.integer("output_datatype", onnx::TensorProto::FLOAT)));
  if (!type) return n.error() << "elements of this type are not supported";
  const double period = double(n.integer("periodic", 1) ? *size : *size - 1);
  std::vector<double> values(*size);
  for (int64_t i = 0; i < *size; ++i)
    for (size_t k = 0; k < coefficients.size(); ++k)
      values[i] += coefficients[k] * (period ? std::cos(2 * std::numbers::pi * double(k) * double(i) / period) : 1);
  return n.set(0, n.emit.floats(type, {*size}, values));
}
LogicalResult hannWindow(Node& n) {
  return window(n, {0.5, -0.5});
}
LogicalResult hammingWindow(Node& n) {
  return window(n, {25.0 / 46, -21.0 / 46});
}
LogicalResult blackmanWindow(Node& n) {
  return window(n, {0.42, -0.5, 0.08});
}

LogicalResult melWeightMatrix(Node& n) {
  auto bins = knownInteger(n, 0, "the number of bins", 1, kMaxLength),
       length = knownInteger(n, 1, "dft_length", 1, kMaxLength),
       rate = knownInteger(n, 2, "the sample rate", 1, INT64_MAX);
  if (!bins || !length || !rate) return failure();
  auto low = n.knownFloats(3, "the lower edge"), high = n.knownFloats(4, "the upper edge");
  if (!low || !high) return failure();
  if (low->size() != 1 || high->size() != 1) return n.error() << "takes one lower and one upper edge";
  Type type = elementType(n.emit.context(), int32_t(n.integer("output_datatype", onnx::TensorProto::FLOAT)));
  const int64_t rows = *length / 2 + 1;
  if (!type || rows * *bins > kMaxTable) return n.error() << "the matrix is out of range";
  auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double first = mel(low->front()), step = (mel(high->front()) - first) / double(*bins + 2);
  std::vector<int64_t> edges;
  for (int64_t i = 0; i < *bins + 2; ++i) {
    const double hertz = 700 * (std::pow(10, (double(i) * step + first) / 2595) - 1);
    const double bin = std::floor(double(*length + 1) * hertz / double(*rate));
    if (!(bin >= 0 && bin < double(rows))) return n.error() << "the edges are out of range";
    edges.push_back(int64_t(bin));
  }
  std::vector<double> values(rows * *bins);
  for (int64_t i = 0; i < *bins; ++i) {
    const int64_t lower = edges[i], center = edges[i + 1], upper = edges[i + 2];
    if (lower == center) values[center * *bins + i] = 1;
    for (int64_t j = lower; lower < center && j <= center; ++j)
      values[j * *bins + i] = double(j - lower) / double(center - lower);
    for (int64_t j = center; j < upper; ++j) values[j * *bins + i] = double(upper - j) / double(upper - center);
  }
  return n.set(0, n.emit.floats(type, {rows, *bins}, values));
}

// The discrete Fourier transform of x [..., 1 or 2] along `axis`, as one product with a matrix. `length`: of the
// transform; onesided: half of the result, or, of an inverse, real numbers from half of them.
Tensor fourier(Node& n, const Tensor& x, int64_t axis, int64_t length, bool inverse, bool onesided) {
  Emitter& e = n.emit;
  if (!x) return {};
  const int64_t parts = x.shape().back(), given = x.dim(axis), half = length / 2 + 1;
  const int64_t results = onesided && !inverse ? half : length, resultParts = onesided && inverse ? 1 : 2;
  if (given > kMaxTable || given * parts * results * resultParts > kMaxTable)
    return n.error() << "a transform of " << length << " elements takes a matrix that is too large", Tensor();
  if (failed(n.importer.countElements(given * parts * results * resultParts))) return {};
  std::vector<double> matrix(given * parts * results * resultParts);
  const int64_t used = std::min(given, onesided && inverse ? half : length), columns = results * resultParts;
  for (int64_t i = 0; i < used; ++i)
    for (int64_t k = 0; k < results; ++k) {
      // i * k modulo the length, so that the angle is exact.
      const double angle = (inverse ? 2 : -2) * std::numbers::pi * double(i * k % length) / double(length);
      double scale = inverse ? 1 / double(length) : 1;
      if (inverse && onesided && i != 0 && 2 * i != length) scale *= 2;  // it stands for its conjugate as well
      const double c = scale * std::cos(angle), s = scale * std::sin(angle);
      auto at = [&](int64_t part, int64_t resultPart) -> double& {
        return matrix[(i * parts + part) * columns + k * resultParts + resultPart];
      };
      at(0, 0) = c;
      if (parts == 2) at(1, 0) = -s;
      if (resultParts == 2) at(0, 1) = s;
      if (resultParts == 2 && parts == 2) at(1, 1) = c;
    }
  Shape permutation;
  for (int64_t d = 0; d < x.rank(); ++d) permutation.push_back(d);
  std::swap(permutation[axis], permutation[x.rank() - 2]);
  Tensor moved = e.transpose(x, permutation);
  Shape rows(moved.shape().drop_back(2)), shape = rows;
  rows.push_back(given * parts);
  shape.append({results, resultParts});
  Tensor product = e.matmul(e.reshape(moved, rows), e.floats(x.elementType(), {given * parts, columns}, matrix));
  return e.transpose(e.reshape(product, shape), permutation);
}

LogicalResult dft(Node& n) {
  Tensor x = n.input(0);
  int64_t axis = n.opset < 20 ? n.integer("axis", 1) : -2;
  if (n.opset >= 20 && n.input(2)) {
    auto given = n.knownIntegers(2, "the axis");
    if (!given) return failure();
    if (given->size() != 1) return n.error() << "takes one axis";
    axis = given->front();
  }
  if (!x.isFloat() || x.rank() < 2 || (x.shape().back() != 1 && x.shape().back() != 2))
    return n.error() << "takes floating-point numbers whose last dimension is 1 or 2";
  if (!n.emit.checkAxis(axis, x.rank())) return failure();
  if (axis == x.rank() - 1) return n.error() << "the axis must not be the last, which holds complex numbers";
  const bool inverse = n.integer("inverse", 0), onesided = n.integer("onesided", 0);
  int64_t length = inverse && onesided ? 2 * (x.dim(axis) - 1) : x.dim(axis);
  if (n.input(1)) {
    auto given = knownInteger(n, 1, "dft_length", 1, kMaxLength);
    if (!given) return failure();
    length = *given;
  }
  if (length < 1) return n.error() << "takes at least one element";
  return n.set(0, fourier(n, x, axis, length, inverse, onesided));
}

LogicalResult stft(Node& n) {
  Emitter& e = n.emit;
  Tensor signal = n.input(0), window = n.input(2);
  if (signal.rank() == 2) signal = e.reshape(signal, {signal.dim(0), signal.dim(1), 1});
  if (!signal.isFloat() || signal.rank() != 3 || (signal.dim(2) != 1 && signal.dim(2) != 2))
    return n.error() << "takes a floating-point signal [batch, length, 1 or 2]";
  auto step = knownInteger(n, 1, "frame_step", 1, kMaxLength);
  if (!step) return failure();
  int64_t length = window ? window.count() : signal.dim(1);
  if (n.input(3)) {
    auto given = knownInteger(n, 3, "frame_length", 1, kMaxLength);
    if (!given) return failure();
    length = *given;
  }
  if (length < 1 || length > signal.dim(1) || (window && (window.rank() != 1 || window.dim(0) != length)))
    return n.error() << "the frame, of " << length << " elements, does not fit the signal or the window";
  const int64_t frames = (signal.dim(1) - length) / *step + 1;
  Type i64 = e.ops().getI64Type();
  Tensor first = e.scalar<train::MulOp>(e.iota(i64, {frames, length}, 0), double(*step));
  Tensor cut = e.gather(signal, e.binary<train::AddOp>(first, e.iota(i64, {frames, length}, 1)), 1);
  if (window) cut = e.binary<train::MulOp>(cut, e.reshape(window, {length, 1}));
  return n.set(0, fourier(n, cut, 2, length, false, n.integer("onesided", 1)));
}

// Products of 2, 4, 8, ... neighbours: each round multiplies by what lies as far back as the last one reached.
LogicalResult cumulativeProduct(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  auto axes = n.knownIntegers(1, "the axis");
  if (!axes) return failure();
  if (axes->size() != 1) return n.error() << "takes one axis";
  int64_t axis = axes->front();
  if (!e.checkAxis(axis, x.rank())) return failure();
  const int64_t size = x.dim(axis);
  const bool reverse = n.integer("reverse", 0);
  // x moved by `distance`, with ones for what comes in.
  auto moved = [&](const Tensor& t, int64_t distance) -> Tensor {
    Shape shape(t.shape());
    shape[axis] = distance;
    Tensor ones = e.splat(t.elementType(), shape, 1);
    Tensor rest = e.sliceAlong(t, axis, reverse ? distance : 0, size - distance);
    return reverse ? e.concat({rest, ones}, axis) : e.concat({ones, rest}, axis);
  };
  if (n.integer("exclusive", 0) && size) x = moved(x, 1);
  for (int64_t distance = 1; x && distance < size; distance *= 2) x = e.binary<train::MulOp>(x, moved(x, distance));
  return n.set(0, x);
}

LogicalResult causalConvolution(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), weight = n.input(1), bias = n.input(2), past = n.input(3);
  if (!x.isFloat() || x.rank() != 3 || weight.rank() != 3 || weight.dim(0) != x.dim(1) || weight.dim(1) != 1 ||
      weight.elementType() != x.elementType() || weight.dim(2) < 1)
    return n.error() << "takes an input [batch, channels, length] and a weight [channels, 1, k]";
  StringRef activation = n.string("activation", "none");
  if (activation != "none" && activation != "silu" && activation != "swish")
    return n.error() << "the activation '" << activation << "' is not known";
  const int64_t channels = x.dim(1), kept = weight.dim(2) - 1;
  const Shape state{x.dim(0), channels, kept};
  if (past && past.shape() != ArrayRef<int64_t>(state)) return n.error() << "the past state does not fit";
  if (bias && bias.shape() != ArrayRef<int64_t>{channels}) return n.error() << "the bias does not fit";
  Tensor all = past ? e.concat({past, x}, 2) : e.pad(x, {0, 0, kept}, {0, 0, 0});
  if (!all) return failure();
  Tensor input = e.reshape(all, {x.dim(0), channels, 1, all.dim(2)});
  Tensor filter = e.reshape(weight, {channels, 1, 1, weight.dim(2)});
  const Shape ones{1, 1}, none{0, 0, 0, 0};
  Tensor y = Value(train::ConvOp::create(e.ops(), e.location(), e.materialize(input), e.materialize(filter), ones, none,
                                         ones, channels));
  y = e.reshape(y, x.shape());
  if (bias) y = e.binary<train::AddOp>(y, e.reshape(bias, {1, channels, 1}));
  if (activation != "none") y = e.binary<train::MulOp>(y, e.unary<train::SigmoidOp>(y));
  if (failed(n.set(0, y))) return failure();
  return n.uses(1) ? n.set(1, e.sliceAlong(all, 2, x.dim(2), kept)) : success();
}

constexpr Operator kOperators[] = {
    {"HannWindow", 17, 0, 1, hannWindow, {.sample = "5"}},
    {"HammingWindow", 17, 0, 1, hammingWindow, {.sample = "5"}},
    {"BlackmanWindow", 17, 0, 1, blackmanWindow, {.sample = "5"}},
    {"MelWeightMatrix", 17, 0, 5, melWeightMatrix, {.sample = "8, 16, 8000, 0.0, 4000.0"}},
    {"DFT", 17, 0, 1, dft, {.sample = "f[1,5,1]"}},
    {"STFT", 17, 0, 2, stft, {.sample = "f[1,16,1], 4, -, 8"}},
    {"CumProd", 26, 0, 2, cumulativeProduct, {.sample = "f[2,3], 1"}},
    {"CausalConvWithState", 27, 0, 2, causalConvolution, {.sample = "f[1,2,5], f[2,1,3]; outputs=2"}},
};

}  // namespace

ArrayRef<Operator> signalOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
