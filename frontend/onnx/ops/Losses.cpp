#include "frontend/onnx/ops/Losses.h"

#include <cmath>
#include <limits>

#include "frontend/onnx/importer/Importer.h"
#include "frontend/onnx/ops/RowsFirst.h"
#include "frontend/onnx/ops/Softmax.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Text.h"
#include "runtime/io/Npy.h"

using namespace mlir;

namespace sheaf::frontend {

namespace {

using Predicate = train::ComparePredicate;
using Kind = train::ReduceKind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A value that a loss takes: KEY=VALUE. A number lies in [low, high].
struct LossSetting {
  enum Type { number, integer, flag, vector } type;
  StringRef key;
  double fallback = 0, low = -kInfinity, high = kInfinity;

  // What stands for the value in help.
  std::string takes() const {
    switch (type) {
      case number:
        return "X";
      case integer:
        return "N";
      case flag:
        return "true";
      case vector:
        return "VECTOR";
    }
    llvm_unreachable("every type has a case");
  }
};

// A loss while it is built: x is the output with its classes, if it has any, last; t is the target. Both are floats in
// f32, but for labels.
struct LossTerm {
  Importer& importer;
  Emitter& e;
  const LossRequest& request;
  Tensor x, t;

  double number(StringRef key) const;
  // A vector of `size` numbers; absent if it is not given, or after an error, which sets `failed`.
  Tensor vector(StringRef key, int64_t size);
  bool failed = false;

  Tensor splat(double value) { return e.splat(e.ops().getF32Type(), {}, value); }
  Tensor add(const Tensor& a, const Tensor& b) { return e.binary<train::AddOp>(a, b); }
  Tensor sub(const Tensor& a, const Tensor& b) { return e.binary<train::SubOp>(a, b); }
  Tensor mul(const Tensor& a, const Tensor& b) { return e.binary<train::MulOp>(a, b); }
  // Of all elements.
  Tensor mean(const Tensor& a) {
    return a ? e.reshape(e.reduce(Kind::mean, a, llvm::to_vector(llvm::seq<int64_t>(0, a.rank()))), {}) : Tensor();
  }
};

// With label smoothing s the target is (1 - s) of the label and s / C of each of the C classes: the loss of a row of
// logits x with label y is (1 - s) w_y CE + s mean(w (lse - x)), where CE = lse - x_y.
Tensor crossEntropy(LossTerm& l) {
  Emitter& e = l.e;
  int64_t classes = l.x.shape().back(), ignore = int64_t(l.number("ignore_index"));
  if (classes == 0) return e.error() << "has no classes", Tensor();
  if (classes == 1)
    return e.error() << "has a single class, of which the cross entropy is always 0: give --loss 'bce_with_logits("
                     << l.request.output << ")', or name the dimension of the classes by axis=N",
           Tensor();
  Tensor logits = e.reshape(l.x, {l.x.count() / classes, classes}), labels = e.reshape(l.t, {l.t.count(), 1});
  Tensor rows = crossEntropyRows(e, logits, labels, ignore), classWeights = l.vector("weight", classes);
  if (!rows) return {};
  RowWeights weights = rowWeights(e, labels, classWeights, ignore, rows.elementType());
  double smoothing = l.number("label_smoothing");
  if (smoothing == 0) return meanRows(e, classWeights ? l.mul(rows, weights.weight) : rows, weights);

  Tensor hot = e.compare(Predicate::eq, e.iota(labels.elementType(), logits.shape(), 1), labels);
  Tensor picked = e.reduce(Kind::sum, e.select(hot, logits, e.splatLike(logits, 0)), {1});
  if (!classWeights) {
    Tensor spread = l.sub(picked, e.reduce(Kind::mean, logits, {1}));
    rows = l.add(rows, l.mul(spread, l.splat(smoothing)));
  } else {
    Tensor row = e.reshape(classWeights, {1, classes}), meanWeight = e.reduce(Kind::mean, row, {1});
    Tensor factor = l.add(l.mul(weights.weight, l.splat(1 - smoothing)), l.mul(meanWeight, l.splat(smoothing)));
    Tensor spread = l.sub(l.mul(picked, meanWeight), e.reduce(Kind::mean, l.mul(logits, row), {1}));
    rows = l.add(l.mul(rows, factor), l.mul(spread, l.splat(smoothing)));
  }
  Tensor valid = e.compare(Predicate::ne, labels, e.splatLike(labels, double(ignore)));
  return meanRows(e, e.select(valid, rows, e.splatLike(rows, 0)), weights);
}

Tensor mse(LossTerm& l) {
  Tensor d = l.sub(l.x, l.t);
  return l.mean(l.mul(d, d));
}

Tensor l1(LossTerm& l) {
  return l.mean(l.e.unary<train::AbsOp>(l.sub(l.x, l.t)));
}

Tensor smoothL1(LossTerm& l) {
  double beta = l.number("beta");
  if (beta == 0) return l1(l);
  Tensor d = l.sub(l.x, l.t), size = l.e.unary<train::AbsOp>(d);
  Tensor near = l.mul(l.mul(d, d), l.splat(0.5 / beta)), far = l.sub(size, l.splat(0.5 * beta));
  return l.mean(l.e.select(l.e.compare(Predicate::lt, size, l.splat(beta)), near, far));
}

// (1 - t) x + (1 + (p - 1) t) log(1 + e^-x), where log(1 + e^z) = max(z, 0) + log1p(e^-|z|) cannot overflow.
Tensor bceWithLogits(LossTerm& l) {
  Emitter& e = l.e;
  Tensor z = e.unary<train::NegOp>(l.x);
  Tensor tail = e.unary<train::Log1pOp>(e.unary<train::ExpOp>(e.unary<train::NegOp>(e.unary<train::AbsOp>(z))));
  Tensor softplus = l.add(e.binary<train::MaxOp>(z, l.splat(0)), tail);
  Tensor positive = l.vector("pos_weight", l.x.shape().back());
  if (positive) softplus = l.mul(softplus, l.add(l.mul(l.sub(positive, l.splat(1)), l.t), l.splat(1)));
  return l.mean(l.add(l.mul(l.sub(l.splat(1), l.t), l.x), softplus));
}

// The mean over the batch of sums over everything else.
Tensor klDiv(LossTerm& l) {
  Emitter& e = l.e;
  Tensor terms;
  if (l.number("log_target") != 0) {
    terms = l.mul(e.unary<train::ExpOp>(l.t), l.sub(l.t, l.x));
  } else {
    // 0 log 0 = 0.
    Tensor zero = e.compare(Predicate::eq, l.t, e.splatLike(l.t, 0));
    Tensor logarithm = e.unary<train::LogOp>(e.select(zero, e.splatLike(l.t, 1), l.t));
    terms = l.mul(l.t, l.sub(logarithm, l.x));
  }
  if (!terms) return {};
  if (terms.rank() > 1) terms = e.reduce(Kind::sum, terms, llvm::to_vector(llvm::seq<int64_t>(1, terms.rank())));
  return l.mean(terms);
}

constexpr LossSetting kCrossEntropy[] = {
    {LossSetting::number, "label_smoothing", 0, 0, 1},
    {LossSetting::integer, "ignore_index", -100, -9e15, 9e15},
    {LossSetting::vector, "weight"},
    {LossSetting::integer, "axis", -1, -16, 15},
};
constexpr LossSetting kSmoothL1[] = {{LossSetting::number, "beta", 1, 0}};
constexpr LossSetting kBce[] = {{LossSetting::vector, "pos_weight"}};
constexpr LossSetting kKlDiv[] = {{LossSetting::flag, "log_target"}};

}  // namespace

struct LossKind {
  StringRef name, operand;  // what stands for the output in help
  StringRef text;
  bool labels;  // whether the target are integers, without the classes
  ArrayRef<LossSetting> settings;
  Tensor (*build)(LossTerm&);

  StringRef target() const { return labels ? "labels" : "targets"; }
  const LossSetting* setting(StringRef key) const {
    auto found = llvm::find_if(settings, [&](const LossSetting& s) { return s.key == key; });
    return found == settings.end() ? nullptr : found;
  }
};

namespace {

const LossKind kKinds[] = {
    {"cross_entropy", "LOGITS",
     "Cross entropy of logits [batch, ..., classes] and int64 labels [batch, ...]; rows whose label is ignore_index "
     "(-100) do not count; weight has a number for each class; axis is that of the classes (the last).",
     true, kCrossEntropy, crossEntropy},
    {"mse", "PREDICTION", "Mean of (prediction - target)^2.", false, {}, mse},
    {"l1", "PREDICTION", "Mean of abs(prediction - target).", false, {}, l1},
    {"smooth_l1", "PREDICTION",
     "Mean of d^2 / (2 beta) where d = abs(prediction - target) is less than beta (1), else d - beta / 2.", false,
     kSmoothL1, smoothL1},
    {"bce_with_logits", "LOGITS",
     "Binary cross entropy of logits and targets in [0, 1]; pos_weight has a number for each element of the last "
     "dimension.",
     false, kBce, bceWithLogits},
    {"kl_div", "LOG_PROBABILITIES",
     "Kullback-Leibler divergence of target probabilities, or with log_target of their logarithms; summed over all "
     "other dimensions, averaged over the batch (PyTorch's batchmean).",
     false, kKlDiv, klDiv},
};

std::string syntaxOf(const LossKind& kind) {
  std::string text = (kind.name + "(" + kind.operand).str();
  for (const LossSetting& s : kind.settings) text += (", " + s.key + "=" + s.takes()).str();
  return text + ")";
}

double LossTerm::number(StringRef key) const {
  const LossSetting& setting = *request.kind->setting(key);
  auto given = request.settings.find(key);
  if (given == request.settings.end()) return setting.fallback;
  if (setting.type == LossSetting::flag) return given->second == "true";
  double value = setting.fallback;
  (void)StringRef(given->second).getAsDouble(value);
  return value;
}

Tensor LossTerm::vector(StringRef key, int64_t size) {
  auto given = request.settings.find(key);
  if (given == request.settings.end()) return {};
  failed = true;
  auto error = [&] { return e.error() << "--loss: " << key << "=" << given->second << ": "; };
  Type f32 = e.ops().getF32Type();
  Tensor values;
  if (const onnx::TensorProto* tensor = importer.initializer(given->second)) {
    values = constantTensor(e, importer.model, *tensor);
    if (!values) return {};
  } else {
    auto file = MappedFile::open(given->second);
    if (!file.ok())
      return error() << "is neither an initializer of the model nor a file that can be read: "
                     << file.status().message(),
             Tensor();
    auto array = io::parseNpy(file->bytes());
    if (!array.ok()) return error() << array.status().message(), Tensor();
    Type element = array->type == io::DataType::F32   ? f32
                   : array->type == io::DataType::F64 ? Type(e.ops().getF64Type())
                                                      : Type();
    if (!element) return error() << "has elements of another type than float32 or float64", Tensor();
    auto constant =
        Constant::fromBytes(RankedTensorType::get(array->shape, element),
                            StringRef(reinterpret_cast<const char*>(array->data.data()), array->data.size()));
    if (!constant) return error() << "has fewer or more elements than its shape takes", Tensor();
    values = *constant;
  }
  if (values.rank() != 1 || values.dim(0) != size || !values.isFloat())
    return error() << "must be a vector of " << size << " floating-point numbers", Tensor();
  failed = false;
  return e.cast(values, f32);
}

}  // namespace

std::string LossRequest::text() const {
  std::string result = (kind->name + "(" + output).str();
  for (const LossSetting& s : kind->settings)
    if (auto it = settings.find(s.key); it != settings.end()) result += (", " + s.key + "=" + it->second).str();
  return result + ")";
}

std::vector<SupportedLoss> supportedLosses() {
  std::vector<SupportedLoss> result;
  for (const LossKind& kind : kKinds) result.push_back({syntaxOf(kind), kind.text.str()});
  return result;
}

bool isLossFunction(StringRef name) {
  return llvm::any_of(kKinds, [&](const LossKind& kind) { return kind.name == name; });
}

FailureOr<std::optional<LossRequest>> parseLoss(StringRef text, llvm::function_ref<InFlightDiagnostic()> error) {
  auto wrong = [&] { return error() << "--loss " << text << ": "; };
  text = text.trim();
  auto [name, rest] = text.split('(');
  if (rest.empty()) return std::optional<LossRequest>();
  const bool closed = rest.consume_back(")");
  LossRequest request;
  for (const LossKind& kind : kKinds)
    if (kind.name == name.trim()) request.kind = &kind;
  if (!request.kind) {
    InFlightDiagnostic diagnostic = wrong() << "there is no loss '" << name.trim() << "'; take one of ";
    llvm::interleaveComma(ArrayRef(kKinds), diagnostic, [&](const LossKind& kind) { diagnostic << kind.name; });
    std::vector<std::string> names;
    for (const LossKind& kind : kKinds) names.push_back(kind.name.str());
    return diagnostic << didYouMean(names, lowerCase(name.trim().str()));
  }
  if (!closed) return wrong() << "the closing ) is missing";
  SmallVector<StringRef> parts;
  rest.split(parts, ',');
  request.output = parts.front().trim().str();
  request.target = request.kind->target().str();
  for (StringRef part : ArrayRef(parts).drop_front()) {
    auto [key, value] = part.split('=');
    key = key.trim(), value = value.trim();
    const LossSetting* setting = request.kind->setting(key);
    if (!setting && key != "target")
      return wrong() << "there is no '" << key << "'; it takes " << syntaxOf(*request.kind) << " and target=NAME";
    if (value.empty()) return wrong() << key << " has no value";
    if (!setting) {
      request.target = value.str();
      continue;
    }
    if (!request.settings.try_emplace(key, value.str()).second) return wrong() << key << " is given twice";
    double number = 0;
    int64_t integer = 0;
    bool valid = true;
    if (setting->type == LossSetting::flag)
      valid = value == "true" || value == "false";
    else if (setting->type != LossSetting::vector)
      valid = !value.getAsDouble(number) && std::isfinite(number) && number >= setting->low &&
              number <= setting->high && (setting->type == LossSetting::number || !value.getAsInteger(10, integer));
    if (!valid) {
      InFlightDiagnostic diagnostic = wrong() << key << "=" << value << " must be ";
      if (setting->type == LossSetting::flag) return diagnostic << "true or false";
      std::string range;
      llvm::raw_string_ostream out(range);
      out << (setting->type == LossSetting::integer ? "an integer " : "a number ");
      if (setting->high < kInfinity)
        out << llvm::format("from %g to %g", setting->low, setting->high);
      else
        out << llvm::format("of at least %g", setting->low);
      return diagnostic << range;
    }
  }
  return std::optional(std::move(request));
}

namespace {

// Finds the function that squashes the numbers of an output: by the graph's nodes, or by the ops that they have become,
// which also shows what is inside functions. Then the operand has no name.
std::optional<Squashed> squashedOutput(const Model& model, StringRef name, const Tensor& output) {
  if (std::optional<Squashed> known = squashed(model, name)) return known;
  Value v = output.value();
  while (auto reshape = v ? v.getDefiningOp<train::ReshapeOp>() : train::ReshapeOp()) v = reshape.getOperand();
  if (!v) return std::nullopt;
  if (v.getDefiningOp<train::SoftmaxOp>() || isWrittenSoftmax(v)) return Squashed{Squashing::softmax, ""};
  if (v.getDefiningOp<train::LogSoftmaxOp>()) return Squashed{Squashing::logSoftmax, ""};
  if (v.getDefiningOp<train::SigmoidOp>()) return Squashed{Squashing::sigmoid, ""};
  return std::nullopt;
}

StringRef nameOf(Squashing by) {
  switch (by) {
    case Squashing::softmax:
      return "softmax";
    case Squashing::logSoftmax:
      return "log-softmax";
    case Squashing::sigmoid:
      return "sigmoid";
    case Squashing::logSigmoid:
      return "log-sigmoid";
  }
  llvm_unreachable("every function has a case");
}

// Refuses the logits of a loss that are squashed already, and log-probabilities that are none. A log-softmax changes
// nothing of a cross entropy. Cross entropy accepts log-sigmoids: their softmax is proportional to the sigmoids. It
// accepts sigmoids with a warning.
LogicalResult checkOperand(Importer& importer, const LossRequest& request, const Tensor& output) {
  const auto build = request.kind->build;
  const bool takesLogits = build == crossEntropy || build == bceWithLogits;
  const std::optional<Squashed> from = squashedOutput(importer.model, request.output, output);
  if (!from || (!takesLogits && build != klDiv)) return success();
  const bool probabilities = from->by == Squashing::softmax || from->by == Squashing::sigmoid;
  if (build == klDiv && !probabilities) return success();
  if (build == crossEntropy && (from->by == Squashing::logSoftmax || from->by == Squashing::logSigmoid))
    return success();
  const std::string operand = from->operand.empty() ? "VALUE" : from->operand, name = request.kind->name.str();
  const bool classes = from->by == Squashing::softmax || from->by == Squashing::logSoftmax;
  const std::string usual = classes ? "cross_entropy" : "bce_with_logits";
  if (build == crossEntropy && from->by == Squashing::sigmoid) {
    importer.emit.warning() << "is a sigmoid, but " << name
                            << " expects unbounded logits: with values from 0 to 1, no class can reach a "
                            << "probability near 1. Give the input of the sigmoid: --loss '" << usual << "(" << operand
                            << ")' or '" << name << "(" << operand << ")'";
    return success();
  }
  InFlightDiagnostic error = importer.emit.error() << "is a " << nameOf(from->by) << " already, and " << name;
  if (build == klDiv)
    return error << " takes logarithms of probabilities: export the model with a log-" << nameOf(from->by)
                 << " in its place, or give --loss '" << usual << "(" << operand << ")'";
  error << " takes what goes into it: give --loss '" << usual << "(" << operand << ")'";
  if (usual != name) error << " or '" << name << "(" << operand << ")'";
  return error << "; any value of the graph can be named";
}

// Adds the input that an output of `type`, without its classes, is compared with. Its data have the rows first: an
// output [tokens * rows] takes [rows, tokens].
Tensor targetOf(Emitter& e, RankedTensorType type, int64_t rows, train::Place place,
                llvm::function_ref<Value(RankedTensorType)> addTarget) {
  const ArrayRef<int64_t> shape = type.getShape();
  const size_t d = size_t(place.dimension);
  const int64_t outer = shape[d] / (rows * place.run);
  Shape divided(shape.take_front(d));
  if (outer > 1) divided.push_back(outer);
  const int64_t at = int64_t(divided.size());
  divided.push_back(rows);
  if (place.run > 1) divided.push_back(place.run);
  llvm::append_range(divided, shape.drop_front(d + 1));
  const RowsFirst data(divided, at);
  return e.reshape(e.transpose(addTarget(type.clone(data.shape)), data.permutation), shape);
}

}  // namespace

Tensor buildLoss(Importer& importer, const LossRequest& request, const Tensor& output, int64_t rows,
                 std::optional<train::Place> place, llvm::function_ref<Value(RankedTensorType)> addTarget) {
  Emitter& e = importer.emit;
  LossTerm term{importer, e, request, output, {}};
  if (!output.isFloat()) return e.error() << "is not of a floating-point type, so it has no gradient", Tensor();
  if (failed(checkOperand(importer, request, output))) return {};
  int64_t rank = output.rank(), least = request.kind->labels ? 2 : 1;
  if (rank < least)
    return e.error() << request.kind->name << " takes an output of at least " << least << " dimension"
                     << (least > 1 ? "s, the batch and the classes" : ", the batch"),
           Tensor();
  term.x = e.cast(output, e.ops().getF32Type());
  Shape shape(output.shape());
  if (!place)
    return e.error() << "its first dimension of " << shape.front() << " does not hold the " << rows
                     << " rows of the batch; name an output that has the rows, or compute the loss in the model",
           Tensor();
  if (request.kind->labels) {
    int64_t axis = int64_t(term.number("axis"));
    if (!e.checkAxis(axis, rank)) return {};
    if (axis == place->dimension)
      return e.error() << "--loss: axis=" << axis << " is the batch, not the classes", Tensor();
    Shape permutation;
    for (int64_t d = 0; d < rank; ++d)
      if (d != axis) permutation.push_back(d);
    permutation.push_back(axis);
    term.x = e.transpose(term.x, permutation);
    shape.erase(shape.begin() + axis);
    if (axis < place->dimension) --place->dimension;
  }
  Type element = request.kind->labels ? Type(e.ops().getI64Type()) : Type(e.ops().getF32Type());
  term.t = targetOf(e, RankedTensorType::get(shape, element), rows, *place, addTarget);
  if (!term.t) return {};
  Tensor loss = request.kind->build(term);
  return term.failed ? Tensor() : loss;
}

}  // namespace sheaf::frontend
