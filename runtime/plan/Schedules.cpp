#include "runtime/plan/Schedules.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numbers>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/Text.h"

namespace sheaf::plan {
namespace {

constexpr double kMostSteps = static_cast<double>(int64_t{1} << 48);

// A setting of a schedule, as a number: what it may be, and its place in the message.
struct Setting {
  enum Type { kSteps, kFraction, kPositive, kWord };

  std::string_view name;
  Type type;
  double fallback;
  double least;  // of kSteps
  double (*get)(const Schedule&);
  void (*set)(Schedule&, double);
  std::span<const std::string_view> words = {};  // of kWord, by value

  bool allows(double value) const {
    switch (type) {
      case kSteps:
        return value == fallback || (value >= least && value <= kMostSteps);
      case kFraction:
        return value == fallback || (value >= 0 && value <= 1);
      case kPositive:
        return value > 0 && std::isfinite(value);
      case kWord:
        return value >= 0 && value < static_cast<double>(words.size());
    }
    return false;
  }

  // "warmup=STEPS"
  std::string syntax() const {
    std::string text = cat(name, "=");
    for (std::string_view word : words) text += cat(text.ends_with('=') ? "" : "|", word);
    return words.empty() ? text + (type == kSteps ? "STEPS" : type == kFraction ? "FRACTION" : "NUMBER") : text;
  }

  // "a number from 0 to 1"
  std::string values() const {
    std::string text;
    for (std::string_view word : words) text += cat(text.empty() ? "" : " or ", word);
    if (!words.empty()) return text;
    if (type == kSteps) return cat("a number of steps, at least ", least);
    return type == kFraction ? "a number from 0 to 1" : "a number above 0 that f32 holds";
  }

  std::optional<double> parse(std::string_view text) const {
    if (!words.empty()) {
      const auto found = std::find(words.begin(), words.end(), text);
      if (found == words.end()) return std::nullopt;
      return static_cast<double>(found - words.begin());
    }
    int64_t integer = 0;
    double real = 0;
    if (type == kSteps) {
      if (!parseInteger(text, integer) || integer < static_cast<int64_t>(least)) return std::nullopt;
      real = static_cast<double>(integer);
    } else if (!parseReal(text, real) || (type == kFraction ? real < 0 : !f32Problem(real).empty())) {
      return std::nullopt;
    }
    return allows(real) ? std::optional(real) : std::nullopt;
  }

  std::string text(double value) const {
    if (!words.empty()) return std::string(words[static_cast<size_t>(value)]);
    char digits[64];  // the fewest that read back to the same number
    const auto end = type == kSteps ? std::to_chars(digits, std::end(digits), static_cast<int64_t>(value)).ptr
                                    : std::to_chars(digits, std::end(digits), value).ptr;
    return std::string(digits, end);
  }
};

constexpr std::string_view kAnneals[] = {"cosine", "linear", "1-sqrt"};
constexpr std::string_view kFalseOrTrue[] = {"false", "true"}, kRises[] = {"linear", "log"};

#define SHEAF_SETTING(FIELD, TYPE, FALLBACK, LEAST)                           \
  Setting {                                                                   \
#FIELD, Setting::TYPE, FALLBACK, LEAST,                                     \
        [](const Schedule& s) { return static_cast<double>(s.FIELD()); },       \
        [](Schedule& s, double v) { s.set_##FIELD(static_cast<decltype(s.FIELD())>(v)); } \
  }

constexpr double kAbsent = -1;  // of `start`
const Setting kWarmup = SHEAF_SETTING(warmup, kSteps, 0, 0);
const Setting kStart = {"start",
                        Setting::kFraction,
                        kAbsent,
                        0,
                        [](const Schedule& s) { return s.has_start() ? s.start() : kAbsent; },
                        [](Schedule& s, double v) { s.set_start(v); }};
const Setting kRise = {"rise",
                       Setting::kWord,
                       0,
                       0,
                       [](const Schedule& s) { return s.log_rise() ? 1.0 : 0.0; },
                       [](Schedule& s, double v) { s.set_log_rise(v != 0); },
                       kRises};
const Setting kDelay = SHEAF_SETTING(delay, kSteps, 0, 0);
const Setting kIdle = {"idle",
                       Setting::kFraction,
                       kAbsent,
                       0,
                       [](const Schedule& s) { return s.has_idle() ? s.idle() : kAbsent; },
                       [](Schedule& s, double v) { s.set_idle(v); }};
const Setting kAhead = SHEAF_SETTING(ahead, kSteps, 0, 0);
const Setting kSteps = SHEAF_SETTING(steps, kSteps, 0, 1);
const Setting kMin = SHEAF_SETTING(min, kFraction, 0, 0);
const Setting kPower = SHEAF_SETTING(power, kPositive, 1, 0);
const Setting kStepSize = SHEAF_SETTING(step_size, kSteps, 0, 1);
const Setting kGamma = SHEAF_SETTING(gamma, kFraction, 0.1, 0);
const Setting kDecay = SHEAF_SETTING(decay, kSteps, 0, 1);
const Setting kPctStart = SHEAF_SETTING(pct_start, kFraction, 0.3, 0);
const Setting kDivFactor = SHEAF_SETTING(div_factor, kPositive, 25, 0);
const Setting kFinalDivFactor = SHEAF_SETTING(final_div_factor, kPositive, 1e4, 0);

Setting anneal(std::span<const std::string_view> words) {
  return {"anneal",
          Setting::kWord,
          0,
          0,
          [](const Schedule& s) { return static_cast<double>(s.anneal()); },
          [](Schedule& s, double v) { s.set_anneal(static_cast<Schedule::Anneal>(v)); },
          words};
}

const Setting kAnneal = anneal(kAnneals), kAnnealCycle = anneal(std::span(kAnneals).first(2));
const Setting kThreePhase = {"three_phase",
                             Setting::kWord,
                             0,
                             0,
                             [](const Schedule& s) { return s.three_phase() ? 1.0 : 0.0; },
                             [](Schedule& s, double v) { s.set_three_phase(v != 0); },
                             kFalseOrTrue};

// How far a step after the warm-up is on the way to the end, from 0 to 1.
double progress(const Schedule& s, double step) {
  const double warmup = static_cast<double>(s.warmup());
  return std::min(1.0, (step + static_cast<double>(s.ahead()) - warmup) / (static_cast<double>(s.steps()) - warmup));
}

double halfCosine(double progress) {
  return 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

double constantFactor(const Schedule&, double) {
  return 1;
}

double cosineFactor(const Schedule& s, double step) {
  return s.min() + (1 - s.min()) * halfCosine(progress(s, step));
}

double linearFactor(const Schedule& s, double step) {
  return 1 + (s.min() - 1) * progress(s, step);
}

double polynomialFactor(const Schedule& s, double step) {
  return s.min() + (1 - s.min()) * std::pow(1 - progress(s, step), s.power());
}

double stepFactor(const Schedule& s, double step) {
  return std::pow(s.gamma(), std::floor((step - static_cast<double>(s.warmup())) / static_cast<double>(s.step_size())));
}

double wsdFactor(const Schedule& s, double step) {
  const double decay = static_cast<double>(s.decay()), begin = static_cast<double>(s.steps()) - decay;
  if (step < begin) return 1;
  const double progress = (step - begin) / decay;
  if (progress >= 1) return s.min();
  const double falls = s.anneal() == Schedule::ANNEAL_COSINE   ? halfCosine(progress)
                       : s.anneal() == Schedule::ANNEAL_LINEAR ? 1 - progress
                                                               : 1 - std::sqrt(progress);
  return s.min() + (1 - s.min()) * falls;
}

// From 1 / div_factor to 1, perhaps back, and down to 1 / (div_factor * final_div_factor). As in PyTorch, phases end
// one step early, since they are counted from step 0.
double oneCycleFactor(const Schedule& s, double step) {
  const double steps = static_cast<double>(s.steps()), rise = s.pct_start() * steps;
  const double low = 1 / s.div_factor(), end = low / s.final_div_factor();
  step = std::min(step, steps - 1);
  struct Phase {
    double last, from, to;
  };
  std::vector<Phase> phases{{rise - 1, low, 1}};
  if (s.three_phase()) phases.push_back({2 * rise - 2, 1, low});
  phases.push_back({steps - 1, s.three_phase() ? low : 1, end});
  double first = 0;
  for (const Phase& phase : phases) {
    if (step > phase.last && &phase != &phases.back()) {
      first = phase.last;
      continue;
    }
    const double progress = phase.last > first ? (step - first) / (phase.last - first) : 1;
    return s.anneal() == Schedule::ANNEAL_LINEAR ? phase.from + (phase.to - phase.from) * progress
                                                 : phase.to + (phase.from - phase.to) * halfCosine(progress);
  }
  return end;
}

// A kind of schedule. Rows are in the order of Schedule::Kind.
struct Row {
  std::string_view name;
  std::vector<const Setting*> settings;  // the first is needed where it has no default
  bool warmsUp, hasLength;
  double (*factor)(const Schedule&, double step);  // at a step after the warm-up
  std::string_view help;

  bool takes(const Setting& setting) const {
    return std::find(settings.begin(), settings.end(), &setting) != settings.end();
  }
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"constant", {&kWarmup, &kStart, &kRise, &kDelay}, true, false, constantFactor, "always 1"},
      {"cosine",
       {&kSteps, &kMin, &kWarmup, &kStart, &kRise, &kDelay, &kIdle, &kAhead},
       true,
       true,
       cosineFactor,
       "half a cosine from 1 to min at `steps`"},
      {"linear",
       {&kSteps, &kMin, &kWarmup, &kStart, &kRise, &kDelay},
       true,
       true,
       linearFactor,
       "a line from 1 to min at `steps`"},
      {"polynomial",
       {&kSteps, &kPower, &kMin, &kWarmup, &kStart, &kRise, &kDelay},
       true,
       true,
       polynomialFactor,
       "min + (1 - min) (1 - progress)^power"},
      {"step",
       {&kStepSize, &kGamma, &kWarmup, &kStart, &kRise, &kDelay},
       true,
       false,
       stepFactor,
       "times gamma every step_size steps"},
      {"wsd",
       {&kDecay, &kSteps, &kMin, &kAnneal, &kWarmup, &kStart, &kRise, &kDelay},
       true,
       true,
       wsdFactor,
       "warmup-stable-decay: 1, then down to min in the last `decay` of `steps`"},
      {"one-cycle",
       {&kSteps, &kPctStart, &kDivFactor, &kFinalDivFactor, &kAnnealCycle, &kThreePhase},
       false,
       true,
       oneCycleFactor,
       "PyTorch's OneCycleLR; the optimizer's lr is its max_lr"}};
  return table;
}

const Row* rowOf(const Schedule& schedule) {
  const auto index = static_cast<size_t>(schedule.kind());
  return index < rows().size() ? &rows()[index] : nullptr;
}

// "steps=STEPS, min=FRACTION"
std::string settingsText(const Row& row, const char* between) {
  std::string text;
  for (const Setting* setting : row.settings) text += cat(text.empty() ? "" : between, setting->syntax());
  return text;
}

}  // namespace

Expected<Schedule> parseSchedule(const std::string& text) {
  const std::string what = cat("learning-rate schedule '", text, "': ");
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const auto row = std::find_if(rows().begin(), rows().end(), [&](const Row& r) { return r.name == name; });
  if (row == rows().end()) {
    std::vector<std::string> names;
    for (const Row& known : rows()) names.emplace_back(known.name);
    const std::string near = nearest(name, names);
    return Status::error(
        cat(what, "expected one of ", listText(names), near.empty() ? "" : cat("; did you mean '", near, "'?")));
  }
  Schedule schedule;
  schedule.set_kind(static_cast<Schedule::Kind>(row - rows().begin()));
  for (const Setting* setting : row->settings)
    if (setting->fallback != kAbsent) setting->set(schedule, setting->fallback);
  std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  std::vector<std::string> seen;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string item = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals), value = equals == std::string::npos ? "" : item.substr(equals + 1);
    const auto setting =
        std::find_if(row->settings.begin(), row->settings.end(), [&](const Setting* s) { return s->name == key; });
    const std::optional<double> number = setting == row->settings.end() ? std::nullopt : (*setting)->parse(value);
    if (!number && setting != row->settings.end())
      return Status::error(cat(what, "'", item, "': ", key, " must be ", (*setting)->values()));
    if (!number) return Status::error(cat(what, "'", item, "' is not one of ", settingsText(*row, ", ")));
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      return Status::error(cat(what, "'", key, "' is given twice"));
    seen.push_back(key);
    (*setting)->set(schedule, *number);
  }
  if (Status status = checkSchedule(schedule); !status.ok()) return Status::error(what + status.message());
  return schedule;
}

std::string scheduleText(const Schedule& schedule) {
  const Row* row = rowOf(schedule);
  if (!row) return "unspecified";
  std::string text(row->name);
  char before = ':';
  for (const Setting* setting : row->settings)
    if (const double value = setting->get(schedule); value != setting->fallback) {
      text += cat(before, setting->name, "=", setting->text(value));
      before = ',';
    }
  return text;
}

Status checkSchedule(const Schedule& schedule) {
  const Row* row = rowOf(schedule);
  if (!row) return Status::error("its kind is not known");
  for (const Setting* setting : row->settings)
    if (!setting->allows(setting->get(schedule))) return Status::error(cat(setting->name, " is out of range"));
  for (const Setting* needed : {&kStepSize, &kDecay})
    if (row->takes(*needed) && needed->get(schedule) == 0)
      return Status::error(cat(row->name, " needs ", needed->syntax()));
  if (schedule.has_start() && schedule.warmup() == 0)
    return Status::error("start= is the fraction that a warm-up begins with: it needs warmup=STEPS");
  if (schedule.has_idle() && schedule.delay() == 0)
    return Status::error("idle= is the fraction in the steps before the schedule begins: it needs delay=STEPS");
  if (schedule.log_rise() && schedule.warmup() < 2)
    return Status::error("rise=log is the shape of a warm-up: it needs warmup=STEPS with at least 2");
  if (!row->hasLength || schedule.steps() == 0) return {};
  const int64_t before = row->warmsUp ? schedule.warmup() : 0;
  if (row->takes(kDecay) && schedule.steps() < before + schedule.decay())
    return Status::error(cat(row->name, " of ", schedule.steps(), " steps is shorter than its warmup of ", before,
                             " and its decay of ", schedule.decay()));
  if (!row->takes(kDecay) && schedule.steps() <= before)
    return Status::error(
        cat(row->name, " needs more steps than the ", before, " of its warmup, not ", schedule.steps()));
  return {};
}

bool lacksLength(const Schedule& schedule) {
  const Row* row = rowOf(schedule);
  return row && row->hasLength && schedule.steps() == 0;
}

Expected<Schedule> withLength(Schedule schedule, int64_t steps) {
  if (lacksLength(schedule)) schedule.set_steps(steps);
  if (Status status = checkSchedule(schedule); !status.ok())
    return Status::error(cat("learning-rate schedule '", scheduleText(schedule), "': ", status.message()));
  return schedule;
}

double scheduleFactor(const Schedule& schedule, int64_t step) {
  const Row& row = *rowOf(schedule);
  if (step < schedule.delay() && schedule.has_idle()) return schedule.idle();
  step = std::max<int64_t>(0, step - schedule.delay());
  if (row.warmsUp && step < schedule.warmup()) {
    const double warmup = static_cast<double>(schedule.warmup());
    if (schedule.log_rise())
      return schedule.start() + (1 - schedule.start()) * (std::log(static_cast<double>(step + 1)) / std::log(warmup));
    if (!schedule.has_start()) return static_cast<double>(step + 1) / warmup;
    return schedule.start() + (1 - schedule.start()) * (static_cast<double>(step) / warmup);
  }
  return row.factor(schedule, static_cast<double>(step));
}

std::string scheduleSyntax() {
  std::string text;
  for (const Row& row : rows()) text += cat(text.empty() ? "" : "|", row.name);
  return text + "[:key=value,...]";
}

std::string scheduleHelp() {
  std::vector<std::string> names;
  for (const Row& row : rows()) names.emplace_back(row.name);
  return cat("The schedule of a factor that all learning rates are multiplied by: ", listText(names),
             ", each with keys, as in cosine:warmup=100,min=0.1. `sheaf schedules` explains them.");
}

std::string schedulePage() {
  std::string text =
      "--lr-schedule NAME[:key=value,...] says what learning rates are multiplied by at each step.\n\nNames\n";
  constexpr size_t kColumns = 100, kIndent = 14;
  for (const Row& row : rows()) {
    text += cat("  ", row.name, std::string(12 - row.name.size(), ' '), row.help);
    size_t column = kColumns;
    for (const Setting* setting : row.settings) {
      const std::string syntax = setting->syntax() + (setting == row.settings.back() ? "" : ",");
      if (column + 1 + syntax.size() > kColumns) text += "\n" + std::string(column = kIndent - 1, ' ');
      text += " " + syntax;
      column += 1 + syntax.size();
    }
    text += "\n";
  }
  return text + R"(
Keys of several names
  steps       Length of the schedule, warm-up included. Without it: the length of the training, from
              --steps or --epochs, or what the state holds that a run resumes.
  warmup      Steps of the warm-up (0). Its step s, from 0 on, has the factor (s + 1) / warmup.
  start       With it, the warm-up goes from `start` at step 0 to 1 at step `warmup`.
  rise        linear, or log: the warm-up goes from `start` (0) by log(s + 1) / log(warmup).
  min         Factor at the end of the schedule (0).
  delay       Steps before the schedule begins (0). They have the schedule's first factor.
  idle        Factor of the steps of `delay` instead.
  ahead       Steps by which progress towards `steps` is counted early (0).
  anneal      Form of the descent (cosine).
)";
}

}  // namespace sheaf::plan
