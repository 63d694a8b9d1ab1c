#include "runtime/exec/Progress.h"

#include <sys/ioctl.h>
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

size_t terminalColumns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Whether the terminal shows UTF-8, by the environment as setlocale() reads it.
bool utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value && *value)
      return std::strstr(value, "UTF-8") || std::strstr(value, "utf8");
  return false;
}

}  // namespace

Progress::Progress(const plan::Plan& plan, int64_t steps, bool shown)
    : shown_(shown), terminal_(isatty(STDERR_FILENO)), lastStep_(steps - 1), throughput_(plan), losses_(kSparkline) {}

void Progress::show(const StepResult& result, bool last) {
  if (!shown_) return;
  double rate = smoothedSeconds_ > 0 ? throughput_.perStep / smoothedSeconds_ : 0;
  char text[240], scale[48] = "";
  if (result.lossScale) std::snprintf(scale, sizeof scale, "  scale %g", *result.lossScale);
  std::snprintf(text, sizeof text, "step %lld/%lld  loss %.4f%s  %s %s/s  %s left",
                static_cast<long long>(result.step + 1), static_cast<long long>(lastStep_ + 1), result.loss, scale,
                countText(static_cast<uint64_t>(std::llround(rate))).c_str(), throughput_.unit,
                duration(smoothedSeconds_ * static_cast<double>(lastStep_ - result.step)).c_str());
  // A line that is wrapped could not be redrawn.
  const std::string course = terminal_ && utf8() ? losses_.text() : std::string();
  const bool fits = std::strlen(text) + 2 + kSparkline < terminalColumns();
  std::fprintf(stderr, "%s%s%s%s%s", terminal_ ? "\r\033[K" : "", text, fits && !course.empty() ? "  " : "",
               fits ? course.c_str() : "", terminal_ && !last ? "" : "\n");
  open_ = terminal_ && !last;
  lastShown_ = Clock::now();
  shownStep_ = result.step;
}

void Progress::step(const StepResult& result) {
  latest_ = result;
  losses_.add(result.loss);
  // The first steps are slow (page faults, cold caches), so their weight in the average decays fast.
  smoothedSeconds_ = smoothedSeconds_ == 0 ? result.seconds : 0.8 * smoothedSeconds_ + 0.2 * result.seconds;
  double since = std::chrono::duration<double>(Clock::now() - lastShown_).count();
  if (terminal_ && (shownStep_ < 0 || since >= 0.1)) show(result, false);
}

void Progress::note(const std::string& text) {
  if (!shown_) return;
  out::fprintf(stderr, "%s%s\n", open_ ? "\n" : "", text.c_str());
  open_ = false;
}

void Progress::finish() {
  if (latest_.step != shownStep_ || open_) show(latest_, true);
}

}  // namespace sheaf::exec
