// Resize and Upsample: each axis by itself. Linear and cubic interpolation are products with constant matrices, and
// nearest neighbours are repetitions, slices or a gather. Coordinates and weights follow ONNX's definition,
// or PyTorch's where the two differ in a model that PyTorch exported.
#include <charconv>
#include <cmath>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/Limits.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

struct Axis {
  int64_t axis, size;  // the result's
  double numerator;    // the scale is the result's size over the input's, or the model's scale over 1
  double denominator = 1;
  double begin = 0, end = 1;  // region of interest, as parts of the axis

  double scale() const { return numerator / denominator; }
};

// How coordinates and weights are computed.
struct Sampling {
  StringRef mode, coordinates, nearest;
  double cubic = -0.75;
  bool antialias = false, excludeOutside = false;

  bool bySizes = false;      // the sizes are given, not the scales
  bool likePyTorch = false;  // PyTorch exported the model: its rules hold where ONNX's are open or differ

  // The coordinate in the input of element `x` of the result. Sizes are divided once, in f64, so that rounding moves no
  // coordinate into another element. A scale of the model is rounded to f32 already; x / scale in f32, as in ONNX
  // Runtime, is mostly whole where it would be with the exact scale.
  double source(const Axis& a, int64_t input, int64_t x) const {
    return mode == "nearest" && !bySizes && coordinates != "tf_crop_and_resize" ? coordinate<float>(a, input, x)
                                                                                : coordinate<double>(a, input, x);
  }

  template <class T>
  T coordinate(const Axis& a, int64_t input, int64_t position) const {
    const T x(position), length(input), size(a.size), numerator(a.numerator), denominator(a.denominator);
    const T resized = numerator * length / denominator;  // before it is rounded down to the size
    if (coordinates == "align_corners") return size <= 1 ? 0 : x * (length - 1) / ((likePyTorch ? size : resized) - 1);
    if (coordinates == "asymmetric") return x * denominator / numerator;
    if (coordinates == "tf_half_pixel_for_nn") return (x + T(0.5)) * denominator / numerator;
    if (coordinates == "tf_crop_and_resize") {
      const T begin(a.begin), end(a.end), last = size - 1;
      if (size <= 1) return (begin + end) / 2 * (length - 1);
      return (begin * (last - x) + end * x) * (length - 1) / last;
    }
    if (coordinates == "pytorch_half_pixel" && size <= 1 && !likePyTorch) return 0;
    const T half = (x + T(0.5)) * denominator / numerator - T(0.5);
    return coordinates == "half_pixel_symmetric" ? half + length / 2 * (1 - size / resized) : half;
  }

  // The element of the input that element `x` of the result is, by its coordinate `source`.
  int64_t nearestOf(const Axis& a, int64_t input, int64_t x, double source) const {
    // PyTorch multiplies with the inverse of the scale, in f32.
    if (likePyTorch && coordinates == "asymmetric" && nearest == "floor")
      source = float(x) * float(a.denominator / a.numerator);
    return std::clamp<int64_t>(nearestTo(source), 0, input - 1);
  }

  int64_t nearestTo(double x) const {
    if (nearest == "floor") return int64_t(std::floor(x));
    if (nearest == "ceil") return int64_t(std::ceil(x));
    if (nearest == "round_prefer_ceil") return int64_t(std::floor(x + 0.5));
    return int64_t(std::ceil(x - 0.5));
  }

  double kernel(double x) const {
    x = std::fabs(x);
    if (mode == "linear") return std::max(1 - x, 0.0);
    if (x <= 1) return ((cubic + 2) * x - (cubic + 3)) * x * x + 1;
    return x < 2 ? ((cubic * x - 5 * cubic) * x + 8 * cubic) * x - 4 * cubic : 0;
  }

  // How many elements of the input, or beyond it, an element of the result is made of.
  double taps(double scale) const { return 2 * radius(scale) + 1; }
  double radius(double scale) const { return (mode == "linear" ? 1 : 2) / squeeze(scale); }
  double squeeze(double scale) const { return antialias ? std::min(scale, 1.0) : 1; }

  // Adds to `row`, of `input` elements, the weights of the input's elements at coordinate `x`.
  void weigh(double x, double scale, MutableArrayRef<double> row) const {
    const int64_t input = row.size();
    const double squeeze = this->squeeze(scale), radius = this->radius(scale);
    double sum = 0;
    SmallVector<std::pair<int64_t, double>> weights;
    for (int64_t i = int64_t(std::ceil(x - radius)); double(i) <= x + radius; ++i) {
      double weight = kernel((double(i) - x) * squeeze);
      if (excludeOutside && (i < 0 || i >= input)) weight = 0;
      weights.push_back({std::clamp<int64_t>(i, 0, input - 1), weight});
      sum += weight;
    }
    for (auto [i, weight] : weights) row[i] += sum == 0 ? weight : weight / sum;
  }
};

// One axis of x replaced by elements at constant positions.
Tensor pick(Emitter& e, const Tensor& x, int64_t axis, ArrayRef<int64_t> positions) {
  const int64_t count = positions.size(), size = x.dim(axis);
  // Every element as often as any: a broadcast, whose gradient is a sum. Neither count is 0.
  bool repeats = count % size == 0, strided = true;
  for (int64_t i = 0; repeats && i < count; ++i) repeats = positions[i] == i / (count / size);
  const int64_t step = count > 1 ? positions[1] - positions[0] : 1;
  for (int64_t i = 1; strided && i < count; ++i) strided = step != 0 && positions[i] - positions[i - 1] == step;
  if (strided) return e.sliceAlong(x, axis, positions[0], count, step);
  if (!repeats) return e.gather(x, e.integers(positions), axis);
  Shape spread(x.shape()), shape(x.shape());
  spread.insert(spread.begin() + axis + 1, 1);
  Shape full = spread;
  full[axis + 1] = count / size;
  shape[axis] = count;
  return e.reshape(e.expand(e.reshape(x, spread), full), shape);
}

LogicalResult resample(Node& n, ArrayRef<Axis> axes, const Sampling& s) {
  Emitter& e = n.emit;
  Tensor x = n.input(0), result = x;
  const Type element = x.elementType();
  const bool cropped = s.coordinates == "tf_crop_and_resize";
  Tensor inside;  // where the result lies within the input, of crops
  Shape resized(x.shape());
  for (const Axis& a : axes) resized[a.axis] = a.size;
  if (!e.checkShape(resized)) return failure();
  if (llvm::is_contained(resized, 0)) return n.set(0, e.splat(element, resized, 0));
  for (const Axis& a : axes) {
    const int64_t input = result ? result.dim(a.axis) : 0;
    if (!result) return failure();
    Shape shape(result.shape());
    shape[a.axis] = a.size;
    if (!e.checkShape(shape)) return failure();
    if (a.size == input && a.numerator == a.denominator && !cropped) continue;
    if (a.size > kMaxTable) return n.error() << "a size of " << a.size << " is out of range";
    std::vector<double> source(a.size);
    for (int64_t i = 0; i < a.size; ++i) source[i] = s.source(a, input, i);
    // Only a region of interest lies far from the input.
    for (double at : source)
      if (!(std::fabs(at) <= double(kMaxElements))) return n.error() << "the region of interest is out of range";
    if (cropped) {
      std::vector<int64_t> within(a.size);
      for (int64_t i = 0; i < a.size; ++i) within[i] = source[i] >= 0 && source[i] <= double(input - 1);
      Shape aligned(x.rank(), 1);
      aligned[a.axis] = a.size;
      Tensor mask = e.reshape(e.cast(e.integers(within), e.ops().getI1Type()), aligned);
      if (!llvm::all_of(within, [](int64_t w) { return w; }))
        inside = inside ? e.select(mask, inside, e.splat(e.ops().getI1Type(), {}, 0)) : mask;
    }
    if (s.mode == "nearest") {
      std::vector<int64_t> positions(a.size);
      for (int64_t i = 0; i < a.size; ++i) positions[i] = s.nearestOf(a, input, i, source[i]);
      result = pick(e, result, a.axis, positions);
      continue;
    }
    if (!elementCount({a.size, input}) || a.size * input > kMaxTable ||
        double(a.size) * s.taps(a.scale()) > double(kMaxTable))
      return n.error() << "resizing " << input << " elements to " << a.size << " takes a matrix that is too large";
    std::vector<double> weights(a.size * input);
    for (int64_t i = 0; i < a.size; ++i)
      s.weigh(source[i], a.scale(), MutableArrayRef<double>(weights).slice(i * input, input));
    // With the axis last: all other dimensions are rows of one product.
    const Type real = isa<FloatType>(element) ? element : e.ops().getF32Type();
    Shape permutation;
    for (int64_t d = 0; d < x.rank(); ++d) permutation.push_back(d);
    std::swap(permutation[a.axis], permutation.back());
    Tensor rows = e.transpose(e.cast(result, real), permutation);
    result = e.transpose(e.matmul(rows, e.floats(real, {a.size, input}, weights), false, true), permutation);
  }
  if (result && result.elementType() != element) result = e.cast(result, element);
  if (inside) result = e.select(inside, result, e.splatLike(result, n.number("extrapolation_value", 0)));
  return n.set(0, result);
}

// The size of dimension `d` of the node's result, as the model states it; -1 if it does not.
int64_t statedSize(const Node& n, int64_t d) {
  const onnx::ValueInfoProto* value =
      n.scope.root && n.uses(0) ? n.importer.model.valueType(n.proto.output(0)) : nullptr;
  if (!value || !value->type().tensor_type().has_shape()) return -1;
  const onnx::TensorShapeProto& shape = value->type().tensor_type().shape();
  return shape.dim_size() == n.input(0).rank() && shape.dim(int(d)).has_dim_value() ? shape.dim(int(d)).dim_value()
                                                                                    : -1;
}

// The number that PyTorch multiplied with: if six digits give this f32, they were written in the program.
double unrounded(double scale) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, float(scale), std::chars_format::general, 6).ptr;
  double decimal = scale;
  std::from_chars(text, end, decimal);
  return float(decimal) == float(scale) ? decimal : scale;
}

// The size of an axis by its scale. An exporter has rounded the scale to f32: where the product lies within that
// rounding of a whole number, the size is the one that the model states, else that of the number before rounding if it
// is known, and else that of a product in f32, as in ONNX Runtime.
std::optional<int64_t> scaledSize(const Node& n, const Axis& a, double part) {
  const int64_t input = n.input(0).dim(a.axis), stated = statedSize(n, a.axis);
  const double size = double(input) * part * a.numerator;
  if (!(size >= 0 && size < double(kMaxElements))) return {};
  constexpr double kRounding = 0x1p-23;
  if (double(stated) >= std::floor(size * (1 - kRounding)) && double(stated) <= std::floor(size * (1 + kRounding)))
    return stated;
  if (a.numerator != float(a.numerator)) return int64_t(std::floor(size));
  return int64_t(std::floor(float(input) * float(part) * float(a.numerator)));
}

LogicalResult resize(Node& n) {
  Tensor x = n.input(0);
  Sampling s;
  s.mode = n.string("mode", "nearest");
  const bool first = n.opset < 11;  // of Resize, and Upsample: one way of computing coordinates
  s.coordinates = first ? "asymmetric" : n.string("coordinate_transformation_mode", "half_pixel");
  s.nearest = first ? "floor" : n.string("nearest_mode", "round_prefer_floor");
  s.cubic = n.number("cubic_coeff_a", -0.75);
  s.antialias = n.integer("antialias", 0), s.excludeOutside = n.integer("exclude_outside", 0);
  auto isOneOf = [](StringRef word, std::initializer_list<StringRef> words) { return llvm::is_contained(words, word); };
  if (!isOneOf(s.mode, {"nearest", "linear", "cubic"})) return n.error() << "the mode '" << s.mode << "' is not known";
  if (!isOneOf(s.coordinates, {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                               "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"}))
    return n.error() << "the coordinate_transformation_mode '" << s.coordinates << "' is not known";
  if (!isOneOf(s.nearest, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}))
    return n.error() << "the nearest_mode '" << s.nearest << "' is not known";
  s.likePyTorch = n.importer.model.proto().producer_name() == "pytorch";
  if (s.antialias && s.mode == "nearest") return n.error() << "antialias takes the mode linear or cubic";

  std::optional<std::vector<double>> scales, roi;
  std::optional<std::vector<int64_t>> sizes;
  const int64_t scalesAt = first ? 1 : 2;
  if (const onnx::AttributeProto* a = n.opset < 9 ? n.attribute("scales") : nullptr)
    scales = std::vector<double>(a->floats().begin(), a->floats().end());
  else if (n.input(scalesAt) && n.input(scalesAt).count() && !(scales = n.knownFloats(scalesAt, "the list of scales")))
    return failure();
  if (!first && n.input(3) && n.input(3).count() && !(sizes = n.knownIntegers(3, "the list of sizes")))
    return failure();
  if (scales.has_value() == sizes.has_value()) return n.error() << "takes either scales or sizes";
  const bool cropped = s.coordinates == "tf_crop_and_resize";
  if (cropped && !(roi = n.knownFloats(1, "the region of interest"))) return failure();

  Shape names = n.integers("axes").value_or(Shape());
  if (!n.has("axes"))
    for (int64_t d = 0; d < x.rank(); ++d) names.push_back(d);
  const size_t count = names.size();
  if ((scales ? scales->size() : sizes->size()) != count || (roi && roi->size() != 2 * count))
    return n.error() << "needs one scale or size for each axis, and two numbers of the region of interest";
  s.bySizes = sizes.has_value();
  StringRef policy = n.string("keep_aspect_ratio_policy", "stretch");
  SmallVector<Axis> axes;
  for (size_t i = 0; i < count; ++i) {
    if (!n.emit.checkAxis(names[i], x.rank())) return failure();
    if (llvm::is_contained(ArrayRef<int64_t>(names).take_front(i), names[i]))
      return n.error() << "the attribute axes names axis " << names[i] << " twice";
    const int64_t input = x.dim(names[i]);
    if (sizes && input == 0 && (*sizes)[i]) return n.error() << "cannot resize an axis of no elements";
    Axis a{.axis = names[i], .size = 0, .numerator = scales ? (*scales)[i] : double((*sizes)[i])};
    if (scales && s.likePyTorch) a.numerator = unrounded(a.numerator);
    if (sizes) a.denominator = double(input);
    if (sizes && input == 0) a.numerator = a.denominator = 1;
    if (!(a.scale() > 0 && double(input) * a.scale() < double(kMaxElements)))
      return n.error() << "a scale of " << a.scale() << " is out of range";
    if (roi) a.begin = (*roi)[i], a.end = (*roi)[i + count];
    // A crop is resized, not the whole axis; before opset 13 the sizes of the result said otherwise.
    auto size = sizes ? (*sizes)[i] : scaledSize(n, a, cropped ? a.end - a.begin : 1);
    if (!size) return n.error() << "the region of interest is out of range";
    a.size = *size;
    axes.push_back(a);
  }
  if (sizes && policy != "stretch" && !axes.empty()) {
    if (policy != "not_larger" && policy != "not_smaller")
      return n.error() << "the keep_aspect_ratio_policy '" << policy << "' is not known";
    auto less = [](const Axis& a, const Axis& b) { return a.numerator * b.denominator < b.numerator * a.denominator; };
    const Axis scale = policy == "not_larger" ? *std::min_element(axes.begin(), axes.end(), less)
                                              : *std::max_element(axes.begin(), axes.end(), less);
    for (Axis& a : axes) {
      a.numerator = scale.numerator, a.denominator = scale.denominator;
      const double size = std::floor(a.numerator * double(x.dim(a.axis)) / a.denominator + 0.5);
      if (!(size < double(kMaxElements))) return n.error() << "a size of " << size << " is out of range";
      a.size = int64_t(size);
    }
  }
  return resample(n, axes, s);
}

constexpr Operator kOperators[] = {
    {"Resize",
     10,
     0,
     1,
     resize,
     {.sample = "f[1,1,3,3], -, f{1,1,2,2}",
      .limits = "where rounding decides a size or the nearest element: as PyTorch in its exports, else exact by sizes, "
                "and as ONNX Runtime by scales"}},
    {"Upsample", 7, 9, 1, resize, {.sample = "f[1,1,3,3], f{1,1,2,2}"}},
};

}  // namespace

ArrayRef<Operator> resizeOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
