#include "tools/sheaf/DeepSpeedConfig.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>

#include "runtime/base/Text.h"
#include "tools/sheaf/DeepSpeedRules.h"

namespace sheaf::tool {
namespace {

using Key = DeepSpeedKey;

// "1", "0.5", "auto", "true".
std::string textOf(const json::Value& value) {
  return value.string() ? *value.string() : json::write(value);
}

bool isAuto(const json::Value& value) {
  return value.string() && *value.string() == "auto";
}

bool same(const json::Value& a, const json::Value& b) {
  double x = 0, y = 0;
  return a.number(x) && b.number(y) ? x == y : json::write(a) == json::write(b);
}

// Whether a key is `name`, or in the section of that name.
bool within(const std::string& key, const std::string& name) {
  return key == name || key.starts_with(name + ".");
}

std::string numberText(double number) {
  return json::write(json::Value(number == std::floor(number) && std::abs(number) < 1e15
                                     ? json::Value(static_cast<int64_t>(number))
                                     : json::Value(number)));
}

class Translator {
 public:
  explicit Translator(const DeepSpeedContext& context) : context_(context) {}

  Expected<DeepSpeedOptions> run(const json::Object& config) {
    SHEAF_RETURN_IF_ERROR(flatten(config, ""));
    SHEAF_RETURN_IF_ERROR(batch());
    SHEAF_RETURN_IF_ERROR(stage());
    SHEAF_RETURN_IF_ERROR(precision());
    SHEAF_RETURN_IF_ERROR(clipping());
    SHEAF_RETURN_IF_ERROR(optimizer());
    for (size_t i = 0; i < values_.size(); ++i)
      if (result_.keys[i].text.empty()) byRule(i);
    for (const std::string& ignored : context_.ignored)
      if (std::none_of(result_.keys.begin(), result_.keys.end(),
                       [&](const Key& key) { return key.outcome == Key::kIgnored && within(key.key, ignored); }))
        return Status::error(cat("--ignore ", ignored, ": there is no key of that name that would be refused"));
    return std::move(result_);
  }

 private:
  Status flatten(const json::Object& section, const std::string& prefix) {
    for (const auto& [name, value] : section.members()) {
      const json::Object* inner = value.object();
      if (inner && !inner->members().empty()) {
        SHEAF_RETURN_IF_ERROR(flatten(*inner, cat(prefix, name, ".")));
        continue;
      }
      // DeepSpeed's older names.
      std::string key = prefix + name;
      if (key.starts_with("bfloat16.")) key = "bf16." + name;
      if (key == "gradient_accumulation_dtype") key = "data_types.grad_accum_dtype";
      // A dot in a name is not a section.
      if (name.find('.') != std::string::npos) key = cat(prefix, "[", name, "]");
      for (const Key& known : result_.keys)
        if (known.key == key)
          return Status::error(cat("'", key, "' is given twice, perhaps by its older name as well"));
      result_.keys.push_back({key, Key::kNoEffect, inner || value.isNull() ? "it is not set" : ""});
      values_.push_back(inner ? json::Value() : value);
    }
    return {};
  }

  // Null: the file does not have the key, or has null.
  const json::Value* find(std::string_view key) const {
    for (size_t i = 0; i < values_.size(); ++i)
      if (result_.keys[i].key == key) return values_[i].isNull() ? nullptr : &values_[i];
    return nullptr;
  }
  size_t indexOf(std::string_view key) const {
    size_t i = 0;
    while (i < result_.keys.size() && result_.keys[i].key != key) ++i;
    return i;
  }
  bool isAutoKey(std::string_view key) const { return find(key) && isAuto(*find(key)); }

  // The number of a key, or the default; `auto` counts as absent.
  Expected<double> number(std::string_view key, double fallback) const {
    const json::Value* value = find(key);
    double result = fallback;
    if (!value || isAuto(*value) || value->number(result)) return result;
    return Status::error(cat("'", key, "' is ", json::write(*value), ", not a number"));
  }
  Expected<bool> flag(std::string_view key, bool fallback) const {
    const json::Value* value = find(key);
    if (!value || isAuto(*value)) return fallback;
    if (value->boolean()) return *value->boolean();
    return Status::error(cat("'", key, "' is ", json::write(*value), ", not true or false"));
  }
  std::string word(std::string_view key, const std::string& fallback) const {
    const json::Value* value = find(key);
    return value && !isAuto(*value) ? textOf(*value) : fallback;
  }

  // What becomes of a key. One that is not in the file is reported if its default is applied or refused.
  void report(std::string_view key, Key::Outcome outcome, std::string text) {
    if (outcome == Key::kRefused)
      for (const std::string& ignored : context_.ignored)
        if (within(std::string(key), ignored)) outcome = Key::kIgnored;
    for (Key& known : result_.keys)
      if (known.key == key) {
        known.outcome = outcome, known.text = std::move(text);
        return;
      }
    if (outcome == Key::kRefused || outcome == Key::kIgnored || outcome == Key::kApplied)
      result_.keys.push_back({std::string(key), outcome, cat("by DeepSpeed's default, ", text)});
  }
  // Of all keys of a section.
  void reportAll(std::string_view section, Key::Outcome outcome, const std::string& text) {
    for (Key& key : result_.keys)
      if (key.key.starts_with(section)) key.outcome = outcome, key.text = text;
  }
  void refuse(std::string_view key, std::string text) { report(key, Key::kRefused, std::move(text)); }
  // By an option, unless the command line has it.
  void apply(std::string_view key, const std::string& option, const std::string& value, const std::string& note = "") {
    if (context_.given.contains(option)) return report(key, Key::kEquivalent, cat(option, " of the command line wins"));
    report(key, Key::kApplied, cat(option, value.empty() ? "" : " ", value, note));
    for (const auto& [name, text] : result_.options)
      if (name == option) return;
    result_.options.emplace_back(option, value);
  }
  // `auto` is filled in by Hugging Face's Trainer from its arguments, which a file does not have.
  void refuseAuto(std::string_view key, const std::string& option) {
    if (context_.given.contains(option))
      report(key, Key::kEquivalent, cat(option, " of the command line says it"));
    else
      refuse(key, cat("it is an argument of the Trainer's: give ", option));
  }

  //===--- Batches ---===//

  Status batch() {
    static constexpr const char *kWhole = "train_batch_size", *kPiece = "train_micro_batch_size_per_gpu",
                                *kSteps = "gradient_accumulation_steps";
    double numbers[3];
    const char* keys[3] = {kWhole, kPiece, kSteps};
    for (int i = 0; i < 3; ++i) {
      Expected<double> read = number(keys[i], 0);
      if (!read.ok()) return read.status();
      numbers[i] = *read;
      if (*read < 0 || *read != std::floor(*read) || *read > 4294967296.0)
        return Status::error(cat("'", keys[i], "' is ", numberText(*read), ", not a number of rows"));
    }
    auto [whole, piece, steps] = numbers;
    if (auto given = context_.given.find("--micro-batches"); given != context_.given.end())
      if (int64_t micro = 0; parseInteger(given->second.back(), micro) && whole == 0)
        steps = static_cast<double>(micro);
    if (isAutoKey(kSteps) && steps == 0 && piece > 0 && whole == 0 && !context_.given.contains("--batch"))
      refuseAuto(kSteps, "--micro-batches");
    const double ranks = static_cast<double>(context_.ranks);
    if (steps == 0) steps = whole > 0 && piece > 0 ? whole / (piece * ranks) : 1;
    if (piece == 0) piece = whole / (steps * ranks);
    if (whole == 0) whole = piece * steps * ranks;
    if (whole != piece * steps * ranks || steps != std::floor(steps) || piece != std::floor(piece))
      return Status::error(cat("train_batch_size ", numberText(whole), " is not train_micro_batch_size_per_gpu ",
                               numberText(piece), " x gradient_accumulation_steps ", numberText(steps), " x ",
                               context_.ranks, " ranks, as DeepSpeed demands; --ranks says how many there are"));
    for (const char* key : {kWhole, kPiece}) {
      if (!find(key)) continue;
      if (isAutoKey(key))
        report(key, Key::kEquivalent, "--batch says how many rows a step has");
      else
        apply(key, "--batch", numberText(whole));
    }
    if (!find(kSteps)) {
      if (steps > 1) apply(kSteps, "--micro-batches", numberText(steps));
    } else if (isAutoKey(kSteps)) {
      if (result_.keys[indexOf(kSteps)].text.empty())
        report(kSteps, Key::kEquivalent, "--micro-batches says how many there are");
    } else {
      apply(kSteps, "--micro-batches", numberText(steps),
            "; the mean is over the labels of the whole step, also where micro-batches have unevenly many");
    }
    return {};
  }

  Status stage() {
    static constexpr const char* kStage = "zero_optimization.stage";
    Expected<double> number = this->number(kStage, 0);
    if (!number.ok()) return number.status();
    if (isAutoKey(kStage))
      report(kStage, Key::kEquivalent, "--zero auto chooses it");
    else if (find(kStage))
      apply(kStage, "--zero", numberText(*number));
    return {};
  }

  //===--- Numbers ---===//

  Status precision() {
    Expected<bool> half = flag("fp16.enabled", false), brain = flag("bf16.enabled", false);
    if (!half.ok()) return half.status();
    if (!brain.ok()) return brain.status();
    if (*half && *brain) return Status::error("fp16 and bf16 are both enabled");
    std::string type = *half ? "f16" : *brain ? "bf16" : "f32";
    for (const char* key : {"fp16.enabled", "bf16.enabled"}) {
      if (!find(key)) continue;
      if (isAutoKey(key))
        refuseAuto(key, "--precision");
      else if (*flag(key, false))
        apply(key, "--precision", type);
      else
        report(key, Key::kNoEffect, "it is off");
    }
    // What follows from the precision follows from the one that wins.
    if (auto given = context_.given.find("--precision"); given != context_.given.end()) type = given->second.back();
    half = type == "f16" && *half, brain = type == "bf16" && *brain;
    SHEAF_RETURN_IF_ERROR(lossScale(*half));
    Expected<bool> check = flag("bf16.check_grad_overflow", true);
    if (!check.ok()) return check.status();
    if (!*brain || !*check)
      report("bf16.check_grad_overflow", Key::kNoEffect, "--on-nan stop ends the run");
    else
      apply("bf16.check_grad_overflow", "--on-nan", "skip");
    for (const char* key : {"communication_data_type", "data_types.grad_accum_dtype"}) {
      if (!find(key)) continue;
      static constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
          {"fp32", "f32"}, {"fp16", "f16"}, {"bf16", "bf16"}, {"bfp16", "bf16"}};
      const std::string given = word(key, type);
      const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes), [&](auto& t) { return t.first == given; });
      const std::string sum = known == std::end(kTypes) ? given : std::string(known->second);
      if (sum == type)
        report(key, Key::kNoEffect, cat("gradients are summed in ", type));
      else if (sum == "f32")
        apply(key, "--reduce-precision", "f32");
      else
        refuse(key, cat("gradients of ", type, " are not summed in ", given));
    }
    return {};
  }

  Status lossScale(bool enabled) {
    static constexpr const char *kScale = "fp16.loss_scale", *kPower = "fp16.initial_scale_power",
                                *kWindow = "fp16.loss_scale_window", *kHysteresis = "fp16.hysteresis",
                                *kFloor = "fp16.min_loss_scale";
    Expected<double> scale = number(kScale, 0), power = number(kPower, 16), window = number(kWindow, 1000),
                     hysteresis = number(kHysteresis, 2), least = number(kFloor, 1);
    for (const Expected<double>* read : {&scale, &power, &window, &hysteresis, &least})
      if (!read->ok()) return read->status();
    if (!(*power >= 0 && *power <= 127) || !(*window >= 1) || *window != std::floor(*window))
      return Status::error(cat("'", kPower, "' is not from 0 to 127, or '", kWindow, "' is not a number of steps"));
    const bool dynamic = enabled && *scale == 0;
    for (const char* key : {kScale, kPower, kWindow, kHysteresis, kFloor})
      report(key, Key::kNoEffect, enabled ? "the loss scale is fixed" : "the precision is not f16");
    if (!enabled) return {};
    const std::string rule = dynamic ? cat("dynamic:init=", numberText(std::exp2(*power)),
                                           ",interval=", numberText(*window), ",floor=", numberText(*least))
                                     : numberText(*scale);
    const char* const holder = find(kScale) || !dynamic ? kScale : find(kPower) ? kPower : kWindow;
    apply(holder, "--loss-scale", rule);
    if (!dynamic) return {};
    for (const char* key : {kPower, kWindow, kFloor})
      if (key != holder) report(key, Key::kApplied, "a setting of --loss-scale");
    if (*hysteresis != 1)
      refuse(kHysteresis,
             "an overflow is tolerated before the scale is reduced; here the first one reduces it: set it to 1");
    else
      report(kHysteresis, Key::kApplied, "the first overflow reduces the loss scale");
    return {};
  }

  Status clipping() {
    static constexpr const char* kKey = "gradient_clipping";
    Expected<double> norm = number(kKey, 1);  // the default of DeepSpeed 0.19
    if (!norm.ok()) return norm.status();
    if (*norm < 0) return Status::error(cat("'", kKey, "' is ", numberText(*norm), ", below 0"));
    if (isAutoKey(kKey))
      refuseAuto(kKey, "--clip-norm");
    else if (*norm > 0)
      apply(kKey, "--clip-norm", numberText(*norm));
    else
      report(kKey, Key::kNoEffect, "it is off");
    return {};
  }

  //===--- Optimizer and scheduler ---===//

  struct Setting {
    const char* key;   // below optimizer.params
    const char* name;  // of our optimizer
    double fallback;
  };

  Status optimizer() {
    static constexpr const char *kType = "optimizer.type", *kParams = "optimizer.params.";
    const bool overridden = context_.given.contains("--optimizer");
    // DeepSpeed takes the names of its own optimizers in any case, PyTorch's as they are.
    const std::string type = word(kType, ""), lower = lowerCase(type);
    const bool exists = std::any_of(result_.keys.begin(), result_.keys.end(),
                                    [](const Key& key) { return key.key.starts_with("optimizer."); });
    if (!exists && !overridden) {
      // Without the section the program makes the optimizer.
      if (schedules()) refuse("optimizer.type", "the program makes the optimizer: give --optimizer");
      return scheduler(std::nullopt);
    }
    if (overridden) {
      reportAll("optimizer.", Key::kEquivalent, "--optimizer of the command line wins");
      return scheduler(std::nullopt);
    }
    std::string name;
    std::vector<Setting> settings;
    Expected<bool> decoupled = flag("optimizer.params.adam_w_mode", true);
    if (!decoupled.ok()) return decoupled.status();
    Expected<bool> torch = flag("optimizer.params.torch_adam", false);
    if (!torch.ok()) return torch.status();
    if (lower == "adam" || lower == "adamw") {
      // DeepSpeed's Adam decays weights as AdamW does, unless adam_w_mode is false. Its default decay is 0; with
      // torch_adam it is that of torch.optim.AdamW.
      name = lower == "adamw" || *decoupled ? "adamw" : "adam";
      settings = {{"eps", "eps", 1e-8}, {"weight_decay", "weight_decay", *torch && name == "adamw" ? 0.01 : 0}};
    } else if (lower == "lion") {
      name = "lion";
      settings = {{"weight_decay", "weight_decay", 0}};
    } else if (type == "SGD") {
      name = "sgd";
      settings = {{"momentum", "momentum", 0}, {"dampening", "dampening", 0}, {"weight_decay", "weight_decay", 0}};
    } else {
      refuse(kType, "Sheaf has Adam, AdamW, Lion and SGD");
      reportAll("optimizer.params.", Key::kNoEffect, cat("a setting of ", kType));
      return scheduler(std::nullopt);
    }
    std::string text;
    auto add = [&](const std::string& key, const std::string& value) {
      text += cat(text.empty() ? ":" : ",", key, "=", value);
    };
    if (isAutoKey("optimizer.params.lr")) refuseAuto("optimizer.params.lr", "--optimizer");
    Expected<double> rate = ratedBy(name == "lion" ? 1e-4 : 1e-3);
    if (!rate.ok()) return rate.status();
    add("lr", numberText(*rate));
    if (name != "sgd") {
      double betas[2] = {0.9, name == "lion" ? 0.99 : 0.999};
      if (const json::Value* pair = find("optimizer.params.betas"); pair && !isAuto(*pair)) {
        const json::Array* two = pair->array();
        if (!two || two->size() != 2 || !(*two)[0].number(betas[0]) || !(*two)[1].number(betas[1]))
          return Status::error(cat("'optimizer.params.betas' is ", textOf(*pair), ", not two numbers"));
      }
      add("beta1", numberText(betas[0]));
      add("beta2", numberText(betas[1]));
    }
    for (const Setting& setting : settings) {
      const std::string key = kParams + std::string(setting.key);
      Expected<double> number = this->number(key, setting.fallback);
      if (!number.ok()) return number.status();
      if (isAutoKey(key) && std::string_view(setting.key) == "weight_decay") refuseAuto(key, "--optimizer");
      add(setting.name, numberText(*number));
    }
    Expected<bool> nesterov = flag("optimizer.params.nesterov", false);
    if (!nesterov.ok()) return nesterov.status();
    if (*nesterov && name == "sgd") add("nesterov", "true");
    apply(kType, "--optimizer", name + text);
    for (size_t i = 0; i < values_.size(); ++i) {
      const Key key = result_.keys[i];
      if (!key.text.empty() || !key.key.starts_with(kParams)) continue;
      const std::string param = key.key.substr(std::string_view(kParams).size());
      const bool isSetting =
          std::any_of(settings.begin(), settings.end(), [&](const Setting& s) { return param == s.key; });
      if (param == "lr" && isWarmup() && *rate != *this->number("optimizer.params.lr", *rate))
        report(key.key, Key::kNoEffect,
               cat("warmup_max_lr of the scheduler wins: ", numberText(*rate),
                   find("scheduler.params.warmup_max_lr") ? "" : ", DeepSpeed's default"));
      else if (isSetting || param == "lr" || (param == "betas" && name != "sgd") ||
               (param == "nesterov" && name == "sgd") || (param == "adam_w_mode" && name.starts_with("adam")))
        report(key.key, Key::kApplied, "in --optimizer");
      else if (param == "torch_adam" && name.starts_with("adam"))
        report(key.key, Key::kApplied, "the default of weight_decay is torch.optim's");
      else if (param == "fused" || param == "foreach" || param == "set_grad_none" ||
               (param == "fp32_optimizer_states" && same(values_[i], true)))
        report(key.key, Key::kNoEffect, "it is about how the update is computed");
      else if ((param == "amsgrad" && same(values_[i], false)) ||
               (param == "bias_correction" && same(values_[i], true)))
        report(key.key, Key::kNoEffect, "so it is here");
      else
        refuse(key.key, cat(name, " has no such setting here"));
    }
    return scheduler(*rate);
  }

  bool schedules() const { return find("scheduler.type"); }
  bool isWarmup() const {
    const std::string type = word("scheduler.type", "");
    return type == "WarmupLR" || type == "WarmupDecayLR";
  }

  // The learning rate that the file gives the optimizer: DeepSpeed's warm-ups replace that of its section by their own.
  Expected<double> ratedBy(double fallback) const {
    Expected<double> own = number("optimizer.params.lr", fallback);
    if (!own.ok() || !isWarmup()) return own;
    const char* key = "scheduler.params.warmup_max_lr";
    Expected<double> most = number(key, find(key) || word("scheduler.type", "") == "WarmupLR" ? *own : 1e-3);
    if (most.ok() && !(*most > 0)) return Status::error(cat("'", key, "' is ", numberText(*most), ", not above 0"));
    return most;
  }
  // That of --optimizer, if it says one.
  std::optional<double> givenRate() const {
    const auto given = context_.given.find("--optimizer");
    if (given == context_.given.end()) return std::nullopt;
    const std::string& text = given->second.back();
    for (const char* start : {":lr=", ",lr="})
      if (const size_t at = text.find(start); at != std::string::npos) {
        const size_t from = at + 4;
        double rate = 0;
        if (parseReal(text.substr(from, text.find(',', from) - from), rate) && rate > 0) return rate;
      }
    return std::nullopt;
  }

  // `rate`: of the file's optimizer; none: the optimizer is that of the command line.
  Status scheduler(std::optional<double> rate) {
    static constexpr const char *kType = "scheduler.type", *kLeast = "scheduler.params.warmup_min_lr",
                                *kMost = "scheduler.params.warmup_max_lr",
                                *kWarmup = "scheduler.params.warmup_num_steps",
                                *kShape = "scheduler.params.warmup_type", *kTotal = "scheduler.params.total_num_steps";
    if (!schedules()) return {};
    if (context_.given.contains("--lr-schedule")) {
      reportAll("scheduler.", Key::kEquivalent, "--lr-schedule of the command line wins");
      return {};
    }
    const std::string type = word(kType, "");
    if (type == "WarmupCosineLR") return warmupCosine();
    if (!isWarmup()) {
      refuse(kType, "Sheaf has WarmupLR, WarmupDecayLR and WarmupCosineLR; see --lr-schedule for others");
      reportAll("scheduler.params.", Key::kNoEffect, cat("a setting of ", kType));
      return {};
    }
    const bool decays = type == "WarmupDecayLR";
    if (isAutoKey(kWarmup)) refuseAuto(kWarmup, "--lr-schedule");
    Expected<double> warmup = number(kWarmup, 1000), least = number(kLeast, 0), total = number(kTotal, 0);
    for (const Expected<double>* read : {&warmup, &least, &total})
      if (!read->ok()) return read->status();
    if (*warmup < 1 || *warmup != std::floor(*warmup))
      return Status::error(cat("'", kWarmup, "' is ", numberText(*warmup), ", not a number of steps"));
    const bool fromFile = rate.has_value();
    if (!rate) rate = givenRate();
    if (!rate && *least > 0) {
      refuse(kLeast, "it is a part of the learning rate: give lr in --optimizer, or --lr-schedule");
      return {};
    }
    const double start = rate ? *least / *rate : 0;
    if (start < 0 || start > 1)
      return Status::error(cat("'", kLeast, "' ", numberText(*least), " is not between 0 and the learning rate ",
                               numberText(rate.value_or(0))));
    std::string text = cat(decays ? "linear:" : "constant:");
    if (decays && *total > 0) text += cat("steps=", numberText(*total), ",");
    if (decays && start > 0) text += cat("min=", numberText(start), ",");
    text += cat("warmup=", numberText(std::max(2.0, *warmup)), ",start=", numberText(start));
    const std::string shape = word(kShape, "log");
    if (shape != "linear") text += ",rise=log";
    apply(kType, "--lr-schedule", text + ",delay=1");
    for (const char* key : {kLeast, kWarmup, kShape, kTotal})
      if (find(key) && !(key == kWarmup && isAutoKey(key)))
        report(key, key == kTotal && !decays ? Key::kNoEffect : Key::kApplied,
               key == kTotal && isAutoKey(key) ? "the run's length" : "in --lr-schedule");
    if (find(kMost))
      report(kMost, fromFile ? Key::kApplied : Key::kEquivalent,
             fromFile ? "lr of --optimizer" : "give it as lr of --optimizer");
    return {};
  }

  // Fractions of the optimizer's learning rate. DeepSpeed begins with a step of rate 0, and counts the way to the end
  // from 1 on.
  Status warmupCosine() {
    static constexpr const char *kType = "scheduler.type", *kLeast = "scheduler.params.warmup_min_ratio",
                                *kWarmup = "scheduler.params.warmup_num_steps",
                                *kShape = "scheduler.params.warmup_type", *kEnd = "scheduler.params.cos_min_ratio",
                                *kTotal = "scheduler.params.total_num_steps";
    if (isAutoKey(kWarmup)) refuseAuto(kWarmup, "--lr-schedule");
    Expected<double> warmup = number(kWarmup, 1000), least = number(kLeast, 0), end = number(kEnd, 1e-4),
                     total = number(kTotal, 0);
    for (const Expected<double>* read : {&warmup, &least, &end, &total})
      if (!read->ok()) return read->status();
    if (*warmup < 1 || *warmup != std::floor(*warmup))
      return Status::error(cat("'", kWarmup, "' is ", numberText(*warmup), ", not a number of steps"));
    for (const auto& [key, ratio] : {std::pair(kLeast, *least), std::pair(kEnd, *end)})
      if (ratio < 0 || ratio > 1) return Status::error(cat("'", key, "' is ", numberText(ratio), ", not from 0 to 1"));
    std::string text = "cosine:";
    if (*total > 0) text += cat("steps=", numberText(*total), ",");
    text += cat("min=", numberText(*end), ",warmup=", numberText(std::max(2.0, *warmup)), ",start=", numberText(*least),
                word(kShape, "log") == "linear" ? "" : ",rise=log");
    apply(kType, "--lr-schedule", text + ",delay=1,idle=0,ahead=1");
    for (const char* key : {kLeast, kWarmup, kShape, kEnd, kTotal})
      if (find(key) && !(key == kWarmup && isAutoKey(key)))
        report(key, Key::kApplied, isAutoKey(key) ? "the run's length" : "in --lr-schedule");
    return {};
  }

  //===--- All other keys ---===//

  void byRule(size_t index) {
    const std::string key = result_.keys[index].key;
    for (const DeepSpeedRule& rule : deepSpeedRules()) {
      if (rule.key.ends_with('.') ? !within(key, std::string(rule.key.substr(0, rule.key.size() - 1)))
                                  : key != rule.key)
        continue;
      const json::Value& value = values_[index];
      const bool neutral = std::any_of(rule.neutral.begin(), rule.neutral.end(),
                                       [&](const json::Value& one) { return same(value, one); });
      if (rule.outcome == Key::kRefused && neutral) return report(key, Key::kNoEffect, "it is off");
      return report(key, rule.outcome, std::string(rule.text));
    }
    std::vector<std::string> names;
    for (const DeepSpeedRule& rule : deepSpeedRules()) names.emplace_back(rule.key);
    for (const char* name : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                             "gradient_clipping", "zero_optimization.stage", "fp16.enabled", "bf16.enabled",
                             "communication_data_type", "optimizer.type", "scheduler.type"})
      names.emplace_back(name);
    const std::string near = nearest(key, names);
    refuse(key, cat("Sheaf does not know this key", near.empty() ? "" : cat("; did you mean '", near, "'?")));
  }

  const DeepSpeedContext& context_;
  DeepSpeedOptions result_;
  std::vector<json::Value> values_;  // of the file's keys, the first ones of result_.keys
};

}  // namespace

Expected<DeepSpeedOptions> translateDeepSpeed(const json::Value& config, const DeepSpeedContext& context) {
  if (!config.object()) return Status::error("a configuration is a JSON object");
  return Translator(context).run(*config.object());
}

}  // namespace sheaf::tool
