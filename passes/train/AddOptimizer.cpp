// Declares the update rule that train.update ops name, and adds the guards of --clip-norm and --on-nan skip to every
// rule.
#include <cmath>
#include <limits>

#include "ir/Train/BatchNorm.h"
#include "llvm/ADT/StringSet.h"
#include "passes/train/Passes.h"

namespace sheaf::train {
#define GEN_PASS_DEF_ADDOPTIMIZER
#include "passes/train/Passes.h.inc"
}  // namespace sheaf::train

using namespace mlir;
using namespace sheaf::train;

namespace {

// A hyperparameter: its default and the interval [low, high) that it must lie in.
struct Hyperparameter {
  StringRef key;
  double value, low, high;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Rule;
class RegionBuilder;
// Builds an optimizer's update from elementwise ops.
using Build = void (*)(RegionBuilder& b, const Rule& rule, Value parameter, Value gradient);

// A parsed NAME[:key=value,...].
struct Rule {
  Build build;
  llvm::StringMap<double> values;
  double operator[](StringRef key) const { return values.lookup(key); }
};

// Builds the region of a train.optimizer. States are declared before the first scalar, whose arguments follow theirs.
class RegionBuilder {
 public:
  RegionBuilder(OptimizerOp op)
      : op(op), builder(OpBuilder::atBlockEnd(&op.getBody().front())), t{builder, op.getLoc()} {}

  Value state(StringRef name) {
    states.push_back(builder.getStringAttr(name));
    return argument();
  }

  Value scalar(ScalarKind kind, double value = 0) {
    auto attribute = ScalarAttr::get(builder.getContext(), kind, value);
    auto known = llvm::find(scalars, Attribute(attribute));
    if (known != scalars.end()) return body().getArgument(2 + states.size() + (known - scalars.begin()));
    scalars.push_back(attribute);
    return argument();
  }

  void finish(ValueRange results) {
    YieldOp::create(builder, op.getLoc(), results);
    op.setStatesAttr(builder.getArrayAttr(states));
    op.setScalarsAttr(builder.getArrayAttr(scalars));
  }

 private:
  OptimizerOp op;
  OpBuilder builder;
  SmallVector<Attribute> states, scalars;

  Block& body() { return op.getBody().front(); }
  Value argument() { return body().addArgument(RankedTensorType::get({}, builder.getF32Type()), op.getLoc()); }

 public:
  TensorBuilder t;
};

// torch.optim.SGD. A first step takes the gradient as the momentum, undamped.
void buildSgd(RegionBuilder& b, const Rule& rule, Value parameter, Value gradient) {
  TensorBuilder& t = b.t;
  double momentum = rule["momentum"], dampening = rule["dampening"], decay = rule["weight_decay"];
  SmallVector<Value> results{Value()};
  Value buffer = momentum != 0 ? b.state("momentum") : Value();
  if (decay != 0) gradient = t.fma(b.scalar(ScalarKind::constant, decay), parameter, gradient);
  if (buffer) {
    Value damped = dampening != 0 ? t.mul(gradient, b.scalar(ScalarKind::constant, 1 - dampening)) : gradient;
    Value next = t.fma(b.scalar(ScalarKind::constant, momentum), buffer, damped);
    if (dampening != 0) {
      Value first = b.scalar(ScalarKind::first_step);
      next = t.select(t.compare(ComparePredicate::gt, first, t.splatLike(first, 0)), gradient, next);
    }
    gradient = rule["nesterov"] != 0 ? t.fma(b.scalar(ScalarKind::constant, momentum), next, gradient) : next;
    results.push_back(next);
  }
  results[0] = t.fma(b.scalar(ScalarKind::lr_times, -1), gradient, parameter);
  b.finish(results);
}

// torch.optim.Adam, and AdamW, which decays the parameter instead of adding to the gradient.
template <bool decoupled>
void buildAdam(RegionBuilder& b, const Rule& rule, Value parameter, Value gradient) {
  TensorBuilder& t = b.t;
  double beta1 = rule["beta1"], beta2 = rule["beta2"], decay = rule["weight_decay"];
  Value m = b.state("exp_avg"), v = b.state("exp_avg_sq");
  if (decay != 0) {
    if (decoupled)
      parameter = t.mul(parameter, b.scalar(ScalarKind::one_minus_lr_times, decay));
    else
      gradient = t.fma(b.scalar(ScalarKind::constant, decay), parameter, gradient);
  }
  m = t.fma(b.scalar(ScalarKind::constant, 1 - beta1), t.sub(gradient, m), m);
  v = t.fma(t.mul(gradient, b.scalar(ScalarKind::constant, 1 - beta2)), gradient,
            t.mul(v, b.scalar(ScalarKind::constant, beta2)));
  Value root = t.make<SqrtOp>(v.getType(), v);
  Value denominator = t.add(t.div(root, b.scalar(ScalarKind::sqrt_bias_correction, beta2)),
                            b.scalar(ScalarKind::constant, rule["eps"]));
  Value step = t.neg(b.scalar(ScalarKind::lr_over_bias_correction, beta1));
  b.finish({t.fma(step, t.div(m, denominator), parameter), m, v});
}

// AdamW as the transformers library of Hugging Face wrote it, and as ONNX Runtime's training artifacts have it: epsilon
// is added before the bias correction, and the updated parameter decays.
void buildAdamWHf(RegionBuilder& b, const Rule& rule, Value parameter, Value gradient) {
  TensorBuilder& t = b.t;
  double beta1 = rule["beta1"], beta2 = rule["beta2"];
  Value m = b.state("exp_avg"), v = b.state("exp_avg_sq");
  m = t.fma(b.scalar(ScalarKind::constant, 1 - beta1), t.sub(gradient, m), m);
  v = t.fma(t.mul(gradient, b.scalar(ScalarKind::constant, 1 - beta2)), gradient,
            t.mul(v, b.scalar(ScalarKind::constant, beta2)));
  Value denominator = t.add(t.make<SqrtOp>(v.getType(), v), b.scalar(ScalarKind::constant, rule["eps"]));
  Value step = t.neg(
      t.mul(b.scalar(ScalarKind::lr_over_bias_correction, beta1), b.scalar(ScalarKind::sqrt_bias_correction, beta2)));
  parameter = t.fma(step, t.div(m, denominator), parameter);
  if (rule["weight_decay"] != 0)
    parameter = t.mul(parameter, b.scalar(ScalarKind::one_minus_lr_times, rule["weight_decay"]));
  b.finish({parameter, m, v});
}

// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2): every element moves by the
// learning rate in the direction of an average of gradient and momentum.
void buildLion(RegionBuilder& b, const Rule& rule, Value parameter, Value gradient) {
  TensorBuilder& t = b.t;
  Value m = b.state("exp_avg"), difference = t.sub(gradient, m);
  if (rule["weight_decay"] != 0)
    parameter = t.mul(parameter, b.scalar(ScalarKind::one_minus_lr_times, rule["weight_decay"]));
  Value average = t.fma(b.scalar(ScalarKind::constant, 1 - rule["beta1"]), difference, m);
  Value direction = t.make<SignOp>(average.getType(), average);
  m = t.fma(b.scalar(ScalarKind::constant, 1 - rule["beta2"]), difference, m);
  b.finish({t.fma(b.scalar(ScalarKind::lr_times, -1), direction, parameter), m});
}

// PyTorch's names and defaults, but for betas, which are two keys here; Lion's are its authors'.
constexpr Hyperparameter kSgd[] = {{"lr", 1e-3, 0, kInfinity},
                                   {"momentum", 0, 0, kInfinity},
                                   {"nesterov", 0, 0, 2},
                                   {"weight_decay", 0, 0, kInfinity},
                                   {"dampening", 0, 0, kInfinity}};
constexpr Hyperparameter kAdam[] = {{"lr", 1e-3, 0, kInfinity},
                                    {"beta1", 0.9, 0, 1},
                                    {"beta2", 0.999, 0, 1},
                                    {"eps", 1e-8, 0, kInfinity},
                                    {"weight_decay", 0, 0, kInfinity}};
constexpr Hyperparameter kAdamW[] = {{"lr", 1e-3, 0, kInfinity},
                                     {"beta1", 0.9, 0, 1},
                                     {"beta2", 0.999, 0, 1},
                                     {"eps", 1e-8, 0, kInfinity},
                                     {"weight_decay", 1e-2, 0, kInfinity}};
constexpr Hyperparameter kAdamWHf[] = {{"lr", 1e-3, 0, kInfinity},
                                       {"beta1", 0.9, 0, 1},
                                       {"beta2", 0.999, 0, 1},
                                       {"eps", 1e-6, 0, kInfinity},
                                       {"weight_decay", 0, 0, kInfinity}};
constexpr Hyperparameter kLion[] = {
    {"lr", 1e-4, 0, kInfinity}, {"beta1", 0.9, 0, 1}, {"beta2", 0.99, 0, 1}, {"weight_decay", 0, 0, kInfinity}};

struct Optimizer {
  StringRef name;
  ArrayRef<Hyperparameter> hyperparameters;
  Build build;
};
const Optimizer kOptimizers[] = {
    {"sgd", kSgd, buildSgd},
    {"adam", kAdam, buildAdam<false>},
    {"adamw", kAdamW, buildAdam<true>},
    {"adamw_hf", kAdamWHf, buildAdamWHf},
    {"lion", kLion, buildLion},
};

FailureOr<double> parseValue(StringRef text) {
  if (text == "true") return 1.0;
  if (text == "false") return 0.0;
  double value;
  // StringRef takes "nan" and the like as well as numbers.
  if (text.getAsDouble(value) || !std::isfinite(value)) return failure();
  return value;
}

FailureOr<Rule> parseRule(StringRef text, function_ref<InFlightDiagnostic()> emitError) {
  auto [name, settings] = text.split(':');
  const Optimizer* optimizer = llvm::find_if(kOptimizers, [name = name](const Optimizer& o) { return o.name == name; });
  if (optimizer == std::end(kOptimizers)) {
    InFlightDiagnostic error = emitError() << "unknown optimizer '" << name << "': take one of ";
    llvm::interleaveComma(ArrayRef(kOptimizers), error, [&](const Optimizer& o) { error << o.name; });
    return error;
  }
  ArrayRef<Hyperparameter> known = optimizer->hyperparameters;
  Rule rule{optimizer->build, {}};
  for (const Hyperparameter& h : known) rule.values[h.key] = h.value;

  SmallVector<StringRef> parts;
  if (text.contains(':')) settings.split(parts, ',');
  llvm::StringSet<> seen;
  for (StringRef part : parts) {
    auto [key, value] = part.split('=');
    auto h = llvm::find_if(known, [key = key](const Hyperparameter& h) { return h.key == key; });
    if (h == known.end()) {
      InFlightDiagnostic error = emitError() << "optimizer " << name << " has no '" << key << "': it takes ";
      llvm::interleave(
          known, [&](const Hyperparameter& h) { error << h.key; }, [&] { error << ", "; });
      return error;
    }
    if (!seen.insert(key).second) return emitError() << "optimizer " << name << ": '" << key << "' is given twice";
    FailureOr<double> number = parseValue(value);
    bool isSwitch = h->key == "nesterov";
    if (failed(number) || *number < h->low || *number >= h->high || (isSwitch && *number != 0 && *number != 1)) {
      InFlightDiagnostic error = emitError() << "optimizer " << name << ": '" << key << "' is '" << value << "', not ";
      if (isSwitch)
        error << "true or false";
      else if (h->high == 1)
        error << "a number of at least 0 and less than 1";
      else
        error << "a number of at least 0";
      return error;
    }
    rule.values[key] = *number;
  }
  if (rule["nesterov"] != 0 && (rule["momentum"] <= 0 || rule["dampening"] != 0))
    return emitError() << "optimizer sgd: nesterov needs a momentum greater than 0 and no dampening";
  return rule;
}

// Multiplies the gradient by the clip scale, and keeps parameter and states where the gradient norm is not finite.
void guard(OptimizerOp op, bool clip, bool skip) {
  Block& body = op.getBody().front();
  OpBuilder builder(op.getContext());
  SmallVector<Attribute> scalars(op.getScalars().getValue());
  auto scalar = [&](ScalarKind kind) {
    scalars.push_back(ScalarAttr::get(builder.getContext(), kind));
    return body.addArgument(RankedTensorType::get({}, builder.getF32Type()), op.getLoc());
  };
  TensorBuilder t{builder, op.getLoc()};
  if (clip) {
    builder.setInsertionPointToStart(&body);
    Value gradient = body.getArgument(1), scaled = t.mul(gradient, scalar(ScalarKind::clip_scale));
    gradient.replaceAllUsesExcept(scaled, scaled.getDefiningOp());
  }
  if (skip) {
    Operation* yield = body.getTerminator();
    builder.setInsertionPoint(yield);
    Value finite = scalar(ScalarKind::finite), apply = t.compare(ComparePredicate::gt, finite, t.splatLike(finite, 0));
    for (auto [i, operand] : llvm::enumerate(yield->getOpOperands())) {
      // The arguments are (parameter, gradient, states...), the results (parameter, states...).
      Value old = body.getArgument(i == 0 ? 0 : i + 1);
      operand.set(t.select(apply, operand.get(), old));
    }
  }
  op.setScalarsAttr(builder.getArrayAttr(scalars));
}

struct AddOptimizer : sheaf::train::impl::AddOptimizerBase<AddOptimizer> {
  using Base::Base;

  void runOnOperation() override {
    if (failed(run())) signalPassFailure();
  }

  LogicalResult run() {
    ModuleOp module = getOperation();
    SmallVector<UpdateOp> updates;
    module.walk([&](UpdateOp op) { updates.push_back(op); });
    bool own = llvm::all_of(updates, [&](UpdateOp op) { return module.lookupSymbol<OptimizerOp>(op.getOptimizer()); });
    if (!optimizer.empty() || !own)
      if (failed(declare(module, updates))) return failure();
    if (clip || skip)
      for (auto op : module.getOps<OptimizerOp>()) guard(op, clip && !isStatistic(op), skip);
    return success();
  }

  LogicalResult declare(ModuleOp module, ArrayRef<UpdateOp> updates) {
    auto ofModel = dyn_cast_or_null<StringAttr>(module->removeAttr("train.default_optimizer"));
    std::string text = !optimizer.empty() ? optimizer : ofModel ? ofModel.str() : "adamw";
    FailureOr<Rule> rule = parseRule(text, [&] { return module.emitError(); });
    if (failed(rule)) return failure();
    // An optimizer that was asked for replaces those that came with the model; none asked for fills in for missing
    // ones.
    if (!optimizer.empty())
      for (auto op : llvm::make_early_inc_range(module.getOps<OptimizerOp>()))
        if (!isStatistic(op)) op.erase();
    for (UpdateOp op : updates)
      if (!module.lookupSymbol<OptimizerOp>(op.getOptimizer())) op.setOptimizer("optimizer");

    OpBuilder builder(&getContext());
    Operation* before = module.lookupSymbol("step");
    if (before)
      builder.setInsertionPoint(before);
    else
      builder.setInsertionPointToEnd(module.getBody());
    auto op =
        OptimizerOp::create(builder, module.getLoc(), "optimizer", builder.getArrayAttr({}), builder.getArrayAttr({}));
    Block& body = op.getBody().emplaceBlock();
    auto scalarType = RankedTensorType::get({}, builder.getF32Type());
    Value parameter = body.addArgument(scalarType, op.getLoc()), gradient = body.addArgument(scalarType, op.getLoc());
    RegionBuilder region(op);
    rule->build(region, *rule, parameter, gradient);
    module->setAttr("train.lr", builder.getF64FloatAttr((*rule)["lr"]));
    module->setAttr("train.rule", builder.getStringAttr(text));
    return success();
  }
};

}  // namespace
