#include "runtime/exec/Progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

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

}  // namespace

Progress::Progress(const plan::Plan& plan, int64_t firstStep, int64_t steps, bool shown)
    : shown_(shown),
      terminal_(isatty(STDERR_FILENO)),
      lastStep_(firstStep + steps - 1),
      unitsPerStep_(static_cast<double>(plan.batch())) {
  for (const plan::Input& input : plan.inputs()) {
    if (!input.tokens() || input.shape_size() != 2) continue;
    unit_ = "tokens";
    unitsPerStep_ = static_cast<double>(plan.batch()) * static_cast<double>(input.shape(1));
    break;
  }
}

void Progress::show(const StepResult& result, bool last) {
  if (!shown_) return;
  double rate = smoothedSeconds_ > 0 ? unitsPerStep_ / smoothedSeconds_ : 0;
  char text[240], scale[48] = "";
  if (result.lossScale) std::snprintf(scale, sizeof scale, "  scale %g", *result.lossScale);
  std::snprintf(text, sizeof text, "step %lld/%lld  loss %.4f%s  %s %s/s  %s left",
                static_cast<long long>(result.step + 1), static_cast<long long>(lastStep_ + 1), result.loss, scale,
                countText(static_cast<uint64_t>(std::llround(rate))).c_str(), unit_,
                duration(smoothedSeconds_ * static_cast<double>(lastStep_ - result.step)).c_str());
  std::fprintf(stderr, terminal_ ? "\r\033[K%s%s" : "%s%s", text, terminal_ && !last ? "" : "\n");
  open_ = terminal_ && !last;
  lastShown_ = Clock::now();
  shownStep_ = result.step;
}

void Progress::step(const StepResult& result) {
  latest_ = result;
  // The first steps are slow (page faults, cold caches), so their weight in the average decays fast.
  smoothedSeconds_ = smoothedSeconds_ == 0 ? result.seconds : 0.8 * smoothedSeconds_ + 0.2 * result.seconds;
  double since = std::chrono::duration<double>(Clock::now() - lastShown_).count();
  if (shownStep_ < 0 || since >= (terminal_ ? 0.1 : 10.0)) show(result, false);
}

void Progress::note(const std::string& text) {
  if (!shown_) return;
  std::fprintf(stderr, "%s%s\n", open_ ? "\n" : "", text.c_str());
  open_ = false;
}

void Progress::finish() {
  if (latest_.step != shownStep_ || open_) show(latest_, true);
}

}  // namespace sheaf::exec
