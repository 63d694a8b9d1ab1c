// Operators that draw random numbers. Their numbers are Philox's, a function of --seed, step, node and element
// (train.random_uniform), and not those of another runtime; the attribute `seed` has no effect.
#include <numbers>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/importer/Model.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// Numbers in (0, 1), one for each element of `like`.
Tensor uniform(Node& n, const Tensor& like) {
  Emitter& e = n.emit;
  if (!like) return {};
  Value v = e.materialize(like);
  auto type = cast<RankedTensorType>(v.getType()).clone(e.ops().getF32Type());
  return Value(
      train::RandomUniformOp::create(e.ops(), e.location(), type, v, e.ops().getI64IntegerAttr(n.importer.dropouts++)));
}

// The element type that the attribute dtype names, or `otherwise`; null after an error.
Type resultType(Node& n, Type otherwise) {
  if (!n.has("dtype")) return otherwise;
  Type type = elementType(n.emit.context(), int32_t(n.integer("dtype", 0)));
  if (!type) n.error() << "results of this dtype are not supported";
  return type;
}

LogicalResult floatingType(Node& n, Type& type) {
  type = resultType(n, n.input(0).elementType());
  if (!type) return failure();
  return isa<FloatType>(type) ? success() : LogicalResult(n.error() << "makes floating-point numbers");
}

LogicalResult bernoulli(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  if (!x.isFloat()) return n.error() << "takes floating-point numbers";
  Type type = resultType(n, x.elementType());
  if (!type) return failure();
  Tensor hit = e.compare(train::ComparePredicate::lt, uniform(n, x), e.cast(x, e.ops().getF32Type()));
  return n.set(0, e.cast(hit, type));
}

LogicalResult randomUniformLike(Node& n) {
  Emitter& e = n.emit;
  const double low = n.number("low", 0), high = n.number("high", 1);
  Type type;
  if (failed(floatingType(n, type))) return failure();
  Tensor wide = e.scalar<train::MulOp>(uniform(n, n.input(0)), high - low);
  return n.set(0, e.cast(e.scalar<train::AddOp>(wide, low), type));
}

// Of two uniform numbers, by Box and Muller's transform ("A note on the generation of random normal deviates", 1958).
LogicalResult randomNormalLike(Node& n) {
  Emitter& e = n.emit;
  Type type;
  if (failed(floatingType(n, type))) return failure();
  Tensor u = uniform(n, n.input(0)), v = uniform(n, n.input(0));
  Tensor radius = e.unary<train::SqrtOp>(e.scalar<train::MulOp>(e.unary<train::LogOp>(u), -2));
  Tensor angle = e.unary<train::CosOp>(e.scalar<train::MulOp>(v, 2 * std::numbers::pi));
  Tensor normal = e.scalar<train::MulOp>(e.binary<train::MulOp>(radius, angle), n.number("scale", 1));
  return n.set(0, e.cast(e.scalar<train::AddOp>(normal, n.number("mean", 0)), type));
}

// Draws classes with the probabilities softmax(x), by the largest of x - log(-log(u)): Gumbel, "Statistical theory of
// extreme values", 1954.
LogicalResult multinomial(Node& n) {
  Emitter& e = n.emit;
  Tensor x = n.input(0);
  const int64_t samples = n.integer("sample_size", 1);
  if (!x.isFloat() || x.rank() != 2 || x.dim(1) < 1)
    return n.error() << "takes the logarithms of the classes' probabilities [batch, classes]";
  Type type = resultType(n, e.ops().getI32Type());
  if (!type) return failure();
  const Shape shape{x.dim(0), samples, x.dim(1)};
  if (samples < 1 || !e.checkShape(shape)) return n.error() << "a sample_size of " << samples << " is out of range";
  Tensor each = e.expand(e.reshape(e.cast(x, e.ops().getF32Type()), {x.dim(0), 1, x.dim(1)}), shape);
  Tensor noise = e.unary<train::LogOp>(e.unary<train::NegOp>(e.unary<train::LogOp>(uniform(n, each))));
  Tensor chosen = e.topK(e.binary<train::SubOp>(each, noise), 2, 1, true);
  return n.set(0, e.cast(e.reshape(chosen, {x.dim(0), samples}), type));
}

constexpr Operator kOperators[] = {
    {"Bernoulli",
     15,
     0,
     1,
     bernoulli,
     {.limits = "the attribute seed has no effect",
      .leftOut = {"test_bernoulli.*", "random numbers, which are not numpy's"}}},
    {"Multinomial",
     7,
     0,
     1,
     multinomial,
     {.sample = "f[2,3]",
      .limits = "the attribute seed has no effect",
      .leftOut = {"test_multinomial.*", "random numbers, which are not numpy's"}}},
    {"RandomNormalLike",
     1,
     0,
     1,
     randomNormalLike,
     {.limits = "the attribute seed has no effect",
      .leftOut = {"test_randomnormallike.*", "random numbers, which are not numpy's"}}},
    {"RandomUniformLike",
     1,
     0,
     1,
     randomUniformLike,
     {.limits = "the attribute seed has no effect",
      .leftOut = {"test_randomuniformlike.*", "random numbers, which are not numpy's"}}},
};

}  // namespace

ArrayRef<Operator> randomOperators() {
  return kOperators;
}

}  // namespace sheaf::frontend
