#include "runtime/plan/LossScale.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <vector>

#include "runtime/base/Text.h"

namespace sheaf::plan {
namespace {

constexpr double kMostSteps = static_cast<double>(int64_t{1} << 40);
constexpr double kMostScale = 1e38, kLeastScale = 1e-30;  // a normal f32 by far, and so is its inverse

struct Setting {
  std::string_view name;
  double fallback, least, most;
  double (*get)(const LossScale&);
  void (*set)(LossScale&, double);
};

constexpr Setting kSettings[] = {
    {"init", 65536, kLeastScale, kMostScale, [](const LossScale& s) { return s.initial(); },
     [](LossScale& s, double v) { s.set_initial(v); }},
    {"growth", 2, 1, kMostScale, [](const LossScale& s) { return s.growth(); },
     [](LossScale& s, double v) { s.set_growth(v); }},
    {"interval", 2000, 1, kMostSteps, [](const LossScale& s) { return static_cast<double>(s.interval()); },
     [](LossScale& s, double v) { s.set_interval(static_cast<int64_t>(v)); }},
    {"backoff", 0.5, 0, 1, [](const LossScale& s) { return s.backoff(); },
     [](LossScale& s, double v) { s.set_backoff(v); }},
    {"floor", 1, kLeastScale, kMostScale, [](const LossScale& s) { return s.floor(); },
     [](LossScale& s, double v) { s.set_floor(v); }}};
constexpr std::string_view kDynamic = "dynamic";

// The fewest digits that read back to the same number.
std::string number(double value) {
  char digits[64];
  const bool whole = value == std::floor(value) && value < 1e15;
  const auto end = whole ? std::to_chars(digits, std::end(digits), static_cast<int64_t>(value)).ptr
                         : std::to_chars(digits, std::end(digits), value).ptr;
  return std::string(digits, end);
}

Status outOfRange(const Setting& setting) {
  if (setting.name == "interval") return Status::error("interval must be a number of steps, from 1 to 2^40");
  if (setting.name == "growth") return Status::error("growth must be a number of at least 1");
  if (setting.name == "backoff") return Status::error("backoff must be a number between 0 and 1");
  return Status::error(cat(setting.name, " must be a number from 1e-30 to 1e38"));
}

bool allows(const Setting& setting, double value) {
  if (setting.name == "interval" && value != std::floor(value)) return false;
  if (setting.name == "backoff") return value > 0 && value < 1;
  return value >= setting.least && value <= setting.most;
}

}  // namespace

Status checkLossScale(const LossScale& scale) {
  if (!isDynamic(scale)) {
    if (!allows(kSettings[0], scale.initial())) return Status::error("a fixed scale must be from 1e-30 to 1e38");
    if (scale.interval() < 0 || scale.growth() != 0 || scale.backoff() != 0 || scale.floor() != 0)
      return Status::error("a fixed scale has a growth, a backoff or a floor");
    return {};
  }
  for (const Setting& setting : kSettings)
    if (!allows(setting, setting.get(scale))) return outOfRange(setting);
  if (scale.floor() > scale.initial()) return Status::error("floor must be at most init");
  return {};
}

Expected<std::optional<LossScale>> parseLossScale(const std::string& text) {
  if (text == "none") return std::optional<LossScale>();
  LossScale scale;
  double fixed = 0;
  if (parseReal(text, fixed)) {
    scale.set_initial(fixed);
  } else {
    if (text != kDynamic && !text.starts_with(cat(kDynamic, ":")))
      return Status::error("expected none, a number or dynamic[:key=value,...]");
    for (const Setting& setting : kSettings) setting.set(scale, setting.fallback);
    std::vector<std::string> seen;
    for (size_t at = kDynamic.size() + 1; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size()), equals = text.find('=', at);
      const std::string key = text.substr(at, std::min(equals, end) - at);
      const Setting* setting = nullptr;
      for (const Setting& known : kSettings)
        if (known.name == key) setting = &known;
      if (!setting)
        return Status::error(cat("dynamic has no '", key, "': it takes init, growth, interval, backoff and floor"));
      if (std::find(seen.begin(), seen.end(), key) != seen.end())
        return Status::error(cat("'", key, "' is given twice"));
      seen.push_back(key);
      double value = 0;
      if (equals >= end || !parseReal(text.substr(equals + 1, end - equals - 1), value) || !allows(*setting, value))
        return outOfRange(*setting);
      setting->set(scale, value);
      at = end + 1;
    }
  }
  SHEAF_RETURN_IF_ERROR(checkLossScale(scale));
  return std::optional<LossScale>(std::move(scale));
}

std::string lossScaleText(const LossScale& scale) {
  if (!isDynamic(scale)) return number(scale.initial());
  std::string text(kDynamic);
  for (const Setting& setting : kSettings)
    if (const double value = setting.get(scale); value != setting.fallback)
      text += cat(text == kDynamic ? ":" : ",", setting.name, "=", number(value));
  return text;
}

std::string lossScaleSyntax() {
  return "none|dynamic[:key=value,...]|NUMBER";
}

LossScaleRule ruleOf(const LossScale& scale) {
  if (!isDynamic(scale)) return {};
  return {.interval = scale.interval(), .growth = scale.growth(), .backoff = scale.backoff(), .floor = scale.floor()};
}

}  // namespace sheaf::plan
