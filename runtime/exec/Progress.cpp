#include "runtime/exec/Progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/base/Print.h"
#include "runtime/base/Text.h"

namespace sheaf::exec {
namespace {

std::string duration(double seconds) {
  int64_t s = static_cast<int64_t>(std::llround(seconds));
  char text[48];
  if (s >= 3600)
    std::snprintf(text, sizeof text, "%lldh%02lldm", static_cast<long long>(s / 3600),
                  static_cast<long long>(s / 60 % 60));
  else if (s >= 60)
    std::snprintf(text, sizeof text, "%lldm%02llds", static_cast<long long>(s / 60), static_cast<long long>(s % 60));
  else
    std::snprintf(text, sizeof text, "%llds", static_cast<long long>(s));
  return text;
}

constexpr size_t kSparkline = 24;
// Between two lines.
constexpr double kSecondsOnTerminal = 0.1, kSecondsElsewhere = 30;

// Whether the terminal shows UTF-8, by the environment as setlocale() reads it.
bool utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value && *value)
      return std::strstr(value, "UTF-8") || std::strstr(value, "utf8");
  return false;
}

}  // namespace

Progress::Progress(const plan::Plan& plan, int64_t steps, Level level)
    : level_(level), terminal_(isatty(STDERR_FILENO)), lastStep_(steps - 1), throughput_(plan), losses_(kSparkline) {}

void Progress::show(const StepResult& result, bool last) {
  if (level_ != Level::kAll) return;
  const double rate = smoothedSeconds_ > 0 ? throughput_.perStep / smoothedSeconds_ : 0;
  auto number = [](const char* name, double value) {
    char text[48];
    std::snprintf(text, sizeof text, "  %s %.3g", name, value);
    return std::string(text);
  };
  char loss[48] = "  loss nan";  // whatever its sign
  if (!std::isnan(result.loss)) std::snprintf(loss, sizeof loss, "  loss %.4f", result.loss);
  const std::string seconds = duration(std::chrono::duration<double>(Clock::now() - begin_).count());
  const std::string left = duration(smoothedSeconds_ * static_cast<double>(lastStep_ - result.step));
  const std::string begin = cat("step ", result.step + 1, "/", lastStep_ + 1, loss);
  const std::string details =
      cat(number("lr", result.learningRate), result.hasNorm ? number("norm", result.gradientNorm) : std::string(),
          result.lossScale ? number("scale", *result.lossScale) : std::string());
  const std::string end = cat("  ", countText(static_cast<uint64_t>(std::llround(rate))), " ", throughput_.unit, "/s  ",
                              seconds, ", ", left, " left");
  // A line that is wrapped could not be redrawn: a narrow terminal shows less.
  const size_t columns = terminal_ ? out::terminalColumns() : std::string::npos;
  std::string text = begin + details + end;
  if (text.size() >= columns) text = begin + end;
  if (text.size() >= columns) text = begin.substr(0, columns - 1);
  const std::string course = terminal_ && utf8() ? losses_.text() : std::string();
  if (!course.empty() && text.size() + 2 + kSparkline < columns) text += "  " + course;
  std::fprintf(stderr, "%s%s%s", terminal_ ? "\r\033[K" : "", text.c_str(), terminal_ && !last ? "" : "\n");
  open_ = terminal_ && !last;
  lastShown_ = Clock::now();
  shownStep_ = result.step;
}

void Progress::step(const StepResult& result) {
  std::lock_guard lock(mutex_);
  latest_ = result;
  losses_.add(result.loss);
  // The first steps are slow (page faults, cold caches), so their weight in the average decays fast.
  smoothedSeconds_ = smoothedSeconds_ == 0 ? result.seconds : 0.8 * smoothedSeconds_ + 0.2 * result.seconds;
  const double since = std::chrono::duration<double>(Clock::now() - lastShown_).count();
  if (terminal_ ? shownStep_ < 0 || since >= kSecondsOnTerminal : since >= kSecondsElsewhere) show(result, false);
}

void Progress::note(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (level_ == Level::kAll) print(text);
}

void Progress::warn(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (level_ != Level::kNothing) print("warning: " + text);
}

void Progress::print(const std::string& text) {
  out::fprintf(stderr, "%s%s\n", open_ ? "\n" : "", text.c_str());
  open_ = false;
}

void Progress::finish() {
  std::lock_guard lock(mutex_);
  if (latest_.step != shownStep_ || open_) show(latest_, true);
}

}  // namespace sheaf::exec
