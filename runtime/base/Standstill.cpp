#include "runtime/base/Standstill.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace sheaf {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// In milliseconds of the clock; 0: none yet.
std::atomic<int64_t> lastTick{0}, waits{0}, gap{0}, gapEnd{0};

// Less than this may be a processor that is busy.
constexpr int64_t kLeast = 1000;

int64_t threshold() {
  return std::max(waits / 2, kLeast);
}

int64_t now() {
  return std::chrono::duration_cast<Milliseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

void Standstill::tick(Milliseconds limit) {
  const int64_t time = now(), last = lastTick.exchange(time);
  waits = limit.count();
  if (last == 0 || time - last < threshold()) return;
  gap = time - last;
  gapEnd = time;
}

void Standstill::end() {
  lastTick = 0;
}

Milliseconds Standstill::recent() {
  const int64_t time = now(), last = lastTick;
  // The thread that ticks may not have run yet since.
  if (last != 0 && time - last >= threshold()) return Milliseconds(time - last);
  return Milliseconds(gap > 0 && time - gapEnd <= std::max(waits.load(), kLeast) ? gap.load() : 0);
}

}  // namespace sheaf
