// Declares the update rules that train.update ops name, one for each parameter group, and adds the guards of
// --clip-norm, --on-nan skip and --loss-scale to every rule.
#include <cmath>
#include <limits>

#include "ir/Train/BatchNorm.h"
#include "ir/Train/ParameterNames.h"
#include "ir/Train/TensorBuilder.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/Regex.h"
#include "passes/train/Passes.h"
#include "runtime/base/Text.h"

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

struct Optimizer;

// A parsed NAME[:key=value,...].
struct Rule {
  const Optimizer* optimizer;
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

using EmitError = function_ref<InFlightDiagnostic()>;

// Reads "key=value,..." over the rule's values.
LogicalResult applySettings(Rule& rule, StringRef settings, EmitError emitError) {
  ArrayRef<Hyperparameter> known = rule.optimizer->hyperparameters;
  StringRef name = rule.optimizer->name;
  SmallVector<StringRef> parts;
  settings.split(parts, ',');
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
    if (const std::string problem = sheaf::f32Problem(*number); !problem.empty())
      return emitError() << "optimizer " << name << ": '" << key << "' is '" << value << "', which " << problem;
    rule.values[key] = *number;
  }
  if (rule["nesterov"] != 0 && (rule["momentum"] <= 0 || rule["dampening"] != 0))
    return emitError() << "optimizer sgd: nesterov needs a momentum greater than 0 and no dampening";
  return success();
}

FailureOr<Rule> parseRule(StringRef text, EmitError emitError) {
  auto [name, settings] = text.split(':');
  const Optimizer* optimizer = llvm::find_if(kOptimizers, [name = name](const Optimizer& o) { return o.name == name; });
  if (optimizer == std::end(kOptimizers)) {
    InFlightDiagnostic error = emitError() << "unknown optimizer '" << name << "': take one of ";
    llvm::interleaveComma(ArrayRef(kOptimizers), error, [&](const Optimizer& o) { error << o.name; });
    return error;
  }
  Rule rule{optimizer, {}};
  for (const Hyperparameter& h : optimizer->hyperparameters) rule.values[h.key] = h.value;
  if (text.contains(':') && failed(applySettings(rule, settings, emitError))) return failure();
  return rule;
}

// The key=value items of a group, with and without its learning rate.
bool setsKey(StringRef settings, StringRef key) {
  return settings.starts_with((key + "=").str()) || settings.contains(("," + key + "=").str());
}
std::string withoutRate(StringRef settings) {
  SmallVector<StringRef> parts;
  settings.split(parts, ',', -1, /*KeepEmpty=*/false);
  llvm::erase_if(parts, [](StringRef part) { return part.starts_with("lr="); });
  return llvm::join(parts, ",");
}

// Parameters that share hyperparameters: those of one --group, or of none, with or without weight decay.
struct Group {
  std::string name, settings;
  Rule rule;
  bool used = false;  // by a parameter
};

// What --group and --no-decay make of the optimizer's hyperparameters.
class Groups {
 public:
  // Group 2 i is of pattern i - 1, or of the parameters that none matches; group 2 i + 1 has the same without decay.
  static FailureOr<Groups> parse(const Rule& base, ArrayRef<std::string> texts, EmitError emitError) {
    Groups groups;
    groups.add("default", "", base);
    for (StringRef text : texts) {
      auto [pattern, settings] = text.rsplit(':');
      auto wrong = [&]() { return emitError() << "--group '" << text << "': "; };
      if (!text.contains(':') || pattern.empty() || settings.empty()) return wrong() << "expected REGEX:key=value,...";
      std::string problem;
      if (!groups.patterns.emplace_back(pattern).isValid(problem))
        return wrong() << "'" << pattern << "' is not a regular expression: " << problem;
      Rule rule = base;
      if (failed(applySettings(rule, settings, wrong))) return failure();
      groups.add(pattern, settings, rule);
    }
    groups.matched.resize(texts.size());
    return groups;
  }

  // The group of a parameter: the last whose pattern matches.
  Group& of(StringRef parameter, bool decays) {
    size_t chosen = 0;
    for (auto [i, pattern] : llvm::enumerate(patterns))
      if (pattern.match(parameter)) {
        matched[i] = true;
        chosen = i + 1;
      }
    Group& group = list[2 * chosen];
    const bool own = setsKey(group.settings, "weight_decay") || group.rule["weight_decay"] == 0;
    Group& used = decays || own ? group : list[2 * chosen + 1];
    used.used = true;
    return used;
  }

  bool anyWithoutDecay() const {
    return llvm::any_of(llvm::enumerate(list), [](auto entry) { return entry.index() % 2 == 1 && entry.value().used; });
  }

  // The position of a pattern that matched no parameter.
  std::optional<size_t> unmatched() const {
    auto found = llvm::find(matched, false);
    return found == matched.end() ? std::nullopt : std::optional<size_t>(found - matched.begin());
  }

  // The position of a pattern whose parameters all have a later group.
  std::optional<size_t> hidden() const {
    for (size_t i = 0; i < matched.size(); ++i)
      if (!list[2 * i + 2].used && !list[2 * i + 3].used) return i;
    return std::nullopt;
  }

  std::vector<Group> list;

 private:
  std::vector<llvm::Regex> patterns;
  std::vector<bool> matched;

  void add(StringRef name, StringRef settings, const Rule& rule) {
    list.push_back({name.str(), settings.str(), rule});
    Rule without = rule;
    without.values["weight_decay"] = 0;
    list.push_back(
        {(name + ", no decay").str(), (settings + (settings.empty() ? "" : ",") + "weight_decay=0").str(), without});
  }
};

// Whether --no-decay is for this parameter: a vector or scalar, or a table that the step only looks rows up in. A tied
// embedding is used in a product too, and decays.
bool isUndecayed(ModuleOp module, StringRef name) {
  auto parameter = module.lookupSymbol<ParameterOp>(name);
  if (!parameter) return false;
  if (cast<RankedTensorType>(parameter.getType()).getRank() < 2) return true;
  bool lookedUp = false, used = false;
  module.walk([&](ReadOp op) {
    if (op.getParameter() != name) return;
    for (OpOperand& use : op->getUses()) {
      auto gather = dyn_cast<GatherOp>(use.getOwner());
      (gather && use.get() == gather.getData() ? lookedUp : used) = true;
    }
  });
  return lookedUp && !used;
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
    const llvm::StringSet<> rules = optimizerNames(module);
    bool own = llvm::all_of(updates, [&](UpdateOp op) { return rules.contains(op.getOptimizer()); });
    if (!optimizer.empty() || !own) {
      if (failed(declare(module, updates))) return failure();
    } else if (!groups.empty() || noDecay) {
      return module.emitError()
             << (noDecay ? "--no-decay" : "--group")
             << " changes an optimizer's hyperparameters, and the model has update rules of its own: "
                "name one with --optimizer";
    }
    // A model's own clipping counts without --clip-norm.
    const bool clips = clip || module->hasAttr("train.default_clip_norm");
    if (clips || skip || scaled)
      for (auto op : module.getOps<OptimizerOp>()) guard(op, (clips || scaled) && !isStatistic(op), skip || scaled);
    return success();
  }

  // Returns the names of the module's optimizers: lookupSymbol() scans all symbols.
  static llvm::StringSet<> optimizerNames(ModuleOp module) {
    llvm::StringSet<> names;
    for (auto op : module.getOps<OptimizerOp>()) names.insert(op.getSymName());
    return names;
  }

  LogicalResult declare(ModuleOp module, ArrayRef<UpdateOp> updates) {
    auto ofModel = dyn_cast_or_null<StringAttr>(module->removeAttr("train.default_optimizer"));
    std::string text = !optimizer.empty() ? optimizer : ofModel ? ofModel.str() : "adamw";
    FailureOr<Rule> rule = parseRule(text, [&] { return module.emitError(); });
    if (failed(rule)) return failure();
    std::vector<std::string> texts(groups.begin(), groups.end());
    FailureOr<Groups> all = Groups::parse(*rule, texts, [&] { return module.emitError(); });
    if (failed(all)) return failure();
    // An optimizer that was asked for replaces those that came with the model; none asked for fills in for missing
    // ones.
    if (!optimizer.empty())
      for (auto op : llvm::make_early_inc_range(module.getOps<OptimizerOp>()))
        if (!isStatistic(op)) op.erase();
    std::vector<std::pair<UpdateOp, size_t>> members;
    const llvm::StringSet<> rules = optimizerNames(module);
    for (UpdateOp op : updates)
      if (!rules.contains(op.getOptimizer())) {
        const bool decays = !noDecay || !isUndecayed(module, op.getParameter());
        members.emplace_back(op, &all->of(nameOf(op.getParameter()), decays) - all->list.data());
      }
    if (std::optional<size_t> unmatched = all->unmatched()) return matchesNothing(module, texts[*unmatched], updates);
    if (std::optional<size_t> hidden = all->hidden())
      module.emitWarning() << "--group '" << texts[*hidden]
                           << "' has no effect: later ones match each of its parameters, and only the last one that "
                              "matches counts; give it after them, or put all settings into one";
    if (noDecay && !all->anyWithoutDecay())
      module.emitWarning() << "--no-decay changes nothing: no parameter that it is for would decay";

    OpBuilder builder(&getContext());
    Operation* before = module.lookupSymbol("step");
    if (before)
      builder.setInsertionPoint(before);
    else
      builder.setInsertionPointToEnd(module.getBody());
    SmallVector<Attribute> declared;
    std::vector<std::string> symbols(all->list.size());
    for (auto [i, group] : llvm::enumerate(all->list)) {
      if (i > 0 && !group.used) continue;
      symbols[i] = i == 0 ? "optimizer" : "optimizer." + std::to_string(declared.size());
      build(builder, module, symbols[i], group.rule);
      NamedAttrList entry;
      entry.set("name", builder.getStringAttr(group.name));
      entry.set("optimizer", FlatSymbolRefAttr::get(builder.getContext(), symbols[i]));
      entry.set("settings", builder.getStringAttr(withoutRate(group.settings)));
      if (setsKey(group.settings, "lr")) entry.set("learning_rate", builder.getF64FloatAttr(group.rule["lr"]));
      declared.push_back(entry.getDictionary(builder.getContext()));
    }
    for (auto [op, group] : members) op.setOptimizer(symbols[group]);
    module->setAttr("train.lr", builder.getF64FloatAttr((*rule)["lr"]));
    module->setAttr("train.rule", builder.getStringAttr(text));
    if (declared.size() > 1) module->setAttr("train.groups", builder.getArrayAttr(declared));
    return success();
  }

  static void build(OpBuilder& builder, ModuleOp module, StringRef symbol, const Rule& rule) {
    auto op = OptimizerOp::create(builder, module.getLoc(), symbol, builder.getArrayAttr({}), builder.getArrayAttr({}));
    Block& body = op.getBody().emplaceBlock();
    auto scalarType = RankedTensorType::get({}, builder.getF32Type());
    Value parameter = body.addArgument(scalarType, op.getLoc()), gradient = body.addArgument(scalarType, op.getLoc());
    RegionBuilder region(op);
    rule.optimizer->build(region, rule, parameter, gradient);
  }

  static LogicalResult matchesNothing(ModuleOp module, StringRef group, ArrayRef<UpdateOp> updates) {
    std::vector<std::string> names;
    for (UpdateOp op : updates) names.push_back(op.getParameter().str());
    return module.emitError() << "--group '" << group << "' matches no parameter that is trained: there are "
                              << sheaf::listText(names);
  }
};

}  // namespace
