// Cross entropy and negative log-likelihood.
#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/importer/Labels.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

using Predicate = train::ComparePredicate;
using Kind = train::ReduceKind;

// Scores [N, C, d...] as rows [N * d..., C].
Tensor scoreRows(Emitter& e, const Tensor& scores) {
  Shape permutation{0};
  for (int64_t d = 2; d < scores.rank(); ++d) permutation.push_back(d);
  permutation.push_back(1);
  Tensor moved = e.transpose(scores, permutation);
  return moved ? e.reshape(moved, {scores.count() / std::max<int64_t>(scores.dim(1), 1), scores.dim(1)}) : Tensor();
}

// Losses [R, 1] of log-probabilities [R, C]: cross entropy where they are a log-softmax, else the label's by a mask.
Tensor negativeLogLikelihoodRows(Emitter& e, const Tensor& scores, const Tensor& labels,
                                 std::optional<int64_t> ignore) {
  if (!scores || !labels) return {};
  Value v = scores.value();
  while (auto reshape = v ? v.getDefiningOp<train::ReshapeOp>() : train::ReshapeOp()) v = reshape.getOperand();
  auto producer = v ? v.getDefiningOp<train::LogSoftmaxOp>() : train::LogSoftmaxOp();
  if (producer && Tensor(v).shape().back() == scores.dim(1))
    return crossEntropyRows(e, e.reshape(producer.getOperand(), scores.shape()), labels, ignore);
  stateLabels(labels, scores.dim(1), ignore);
  Tensor wide = e.cast(labels, e.ops().getI64Type());
  Tensor hot = e.compare(Predicate::eq, e.iota(e.ops().getI64Type(), scores.shape(), 1), wide);
  if (ignore)
    hot = e.binary<train::AndOp>(
        hot, e.expand(e.compare(Predicate::ne, wide, e.splatLike(wide, double(*ignore))), scores.shape()));
  return e.unary<train::NegOp>(e.reduce(Kind::sum, e.select(hot, scores, e.splatLike(scores, 0)), {1}));
}

// Sum or mean of losses [R, 1] by the weight of each row; the mean divides by the weights' sum. `zeroIfNoneCounts`:
// the mean over no rows is 0, not 0 / 0.
Tensor reduceRows(Emitter& e, const Tensor& losses, const Tensor& labels, const Tensor& classWeights,
                  std::optional<int64_t> ignore, StringRef reduction, bool zeroIfNoneCounts) {
  if (!losses) return {};
  RowWeights weights = rowWeights(e, labels, classWeights, ignore, losses.elementType());
  // Ignored rows are 0 already.
  Tensor weighted = classWeights ? e.binary<train::MulOp>(losses, weights.weight) : losses;
  if (reduction == "none") return weighted;
  if (zeroIfNoneCounts && reduction == "mean" && !weights.all) {
    // LossWeight.cpp recognises max(sum, 1) of a count. Class weights may sum to less than 1, so their limit is 1e-7.
    Tensor sum = e.reduce(Kind::sum, weights.weight, {0});
    sum = e.scalar<train::MaxOp>(sum, classWeights ? 1e-7 : 1);
    return e.reshape(e.binary<train::DivOp>(e.reduce(Kind::sum, weighted, {0}), sum), {});
  }
  return reduction == "mean" ? meanRows(e, weighted, weights) : e.reshape(e.reduce(Kind::sum, weighted, {0}), {});
}

// Refuses labels that are not integers of the shape `expected`.
LogicalResult labelsError(Node& n, ArrayRef<int64_t> expected) {
  const std::string& name = n.proto.input(1);
  const bool isInput =
      llvm::any_of(n.importer.model.graph().input(), [&](const auto& input) { return input.name() == name; });
  const bool isGiven =
      llvm::any_of(n.importer.options.constants, [&](const KnownInput& known) { return known.name == name; });
  std::string type;
  llvm::raw_string_ostream(type) << n.input(1).elementType();
  return n.error() << "takes integer labels of the shape " << shapeText(expected)
                   << ", which is that of the scores without the classes; " << (isInput ? "the input '" : "'") << name
                   << "'" << (isGiven ? ", given by --const," : "") << " is " << type << shapeText(n.input(1).shape())
                   << (isGiven ? ": give it as data, by `sheaf-run --data`" : ": export the model with such labels");
}

LogicalResult loss(Node& n, bool logits) {
  Emitter& e = n.emit;
  Tensor scores = n.input(0), labels = n.input(1), weights = n.input(2);
  if (scores.rank() < 2 || !scores.isFloat()) return n.error() << "takes floating-point scores [N, C, ...]";
  if (scores.dim(1) == 0) return n.error() << "has no classes";
  Shape expected(scores.shape());
  expected.erase(expected.begin() + 1);
  if (labels.shape() != ArrayRef<int64_t>(expected) || labels.isFloat() || labels.isBool())
    return labelsError(n, expected);
  if (weights &&
      (weights.rank() != 1 || weights.dim(0) != scores.dim(1) || weights.elementType() != scores.elementType()))
    return n.error() << "takes one weight per class";
  StringRef reduction = n.string("reduction", "mean");
  if (reduction != "mean" && reduction != "sum" && reduction != "none")
    return n.error() << "the attribute reduction is '" << reduction << "'; it takes none, sum or mean";
  std::optional<int64_t> ignore;
  if (n.has("ignore_index")) ignore = n.integer("ignore_index", 0);
  if (Tensor given = n.input(3)) {  // of ONNX Runtime's variant
    if (!given.constant() || given.count() != 1) return n.error() << "ignore_index must be a known scalar";
    ignore = int64_t(given.constant()->splatValue());
  }

  if (!labels.elementType().isInteger(32) && !labels.elementType().isInteger(64))
    labels = e.cast(labels, e.ops().getI64Type());
  // An ignore_index that the labels' type cannot hold matches no label.
  if (ignore && labels.elementType().isInteger(32) && *ignore != int32_t(*ignore)) ignore.reset();
  Tensor rows = scoreRows(e, scores), column = e.reshape(labels, {labels.count(), 1});
  Tensor losses =
      logits ? crossEntropyRows(e, rows, column, ignore) : negativeLogLikelihoodRows(e, rows, column, ignore);
  // ONNX Runtime's operators give 0 there; ONNX's own gives NaN, as PyTorch does.
  const bool zeroIfNoneCounts = n.proto.domain() == "com.microsoft";
  Tensor result = reduceRows(e, losses, column, weights, ignore, reduction, zeroIfNoneCounts);
  if (reduction == "none") result = e.reshape(result, expected);
  if (failed(n.set(0, result))) return failure();
  if (!logits || !n.uses(1)) return success();
  return n.set(1, e.softmax(scores, 1, /*logarithm=*/true));
}

LogicalResult softmaxCrossEntropyLoss(Node& n) {
  return loss(n, true);
}

LogicalResult negativeLogLikelihoodLoss(Node& n) {
  return loss(n, false);
}

constexpr Operator kOperators[] = {
    {"SoftmaxCrossEntropyLoss", 12, 0, 2, softmaxCrossEntropyLoss, {.sample = "f[2,3], i[2]"}},
    {"NegativeLogLikelihoodLoss", 12, 0, 2, negativeLogLikelihoodLoss, {.sample = "f[2,3], i[2]"}},
    {"SoftmaxCrossEntropyLossInternal",
     1,
     0,
     2,
     softmaxCrossEntropyLoss,
     {.domain = "com.microsoft", .sample = "f[2,3], i[2]"}},
};

}  // namespace

ArrayRef<Operator> lossOperators() {
  return kOperators;
}

Tensor crossEntropyRows(Emitter& e, const Tensor& logits, const Tensor& labels, std::optional<int64_t> ignore) {
  if (!logits || !labels) return {};
  stateLabels(labels, logits.dim(1), ignore);
  Value l = e.materialize(logits), t = e.materialize(labels);
  auto op = train::CrossEntropyOp::create(e.ops(), e.location(), l, t,
                                          ignore ? e.ops().getI64IntegerAttr(*ignore) : IntegerAttr());
  return op.getLoss();
}

RowWeights rowWeights(Emitter& e, const Tensor& labels, const Tensor& classWeights, std::optional<int64_t> ignore,
                      Type element) {
  if (!classWeights && !ignore) return {{}, true};
  Tensor valid = ignore ? e.compare(Predicate::ne, labels, e.splatLike(labels, double(*ignore))) : Tensor();
  if (!classWeights) return {e.cast(valid, element)};
  // A label that is ignored need not be a class: look up any.
  Tensor safe = valid ? e.select(valid, labels, e.splatLike(labels, 0)) : labels;
  Tensor weight = e.gather(classWeights, safe, 0);
  return {valid ? e.select(valid, weight, e.splatLike(weight, 0)) : weight};
}

Tensor meanRows(Emitter& e, const Tensor& weighted, const RowWeights& weights) {
  if (weights.all) return e.reshape(e.reduce(Kind::mean, weighted, {0}), {});
  Tensor sum = e.reduce(Kind::sum, weighted, {0});
  return e.reshape(e.binary<train::DivOp>(sum, e.reduce(Kind::sum, weights.weight, {0})), {});
}

}  // namespace sheaf::frontend
