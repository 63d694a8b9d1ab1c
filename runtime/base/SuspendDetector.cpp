#include "runtime/base/SuspendDetector.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace sheaf {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// Times are milliseconds of the clock; 0: none yet.
std::atomic<int64_t> lastHeartbeat{0}, timeoutMs{0}, suspendedMs{0}, suspensionEnd{0};

// A shorter gap may be a busy processor.
constexpr int64_t kMinMs = 1000;

int64_t threshold() {
  return std::max(timeoutMs / 2, kMinMs);
}

int64_t now() {
  return std::chrono::duration_cast<Milliseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

void SuspendDetector::heartbeat(Milliseconds timeout) {
  const int64_t time = now(), last = lastHeartbeat.exchange(time);
  timeoutMs = timeout.count();
  if (last == 0 || time - last < threshold()) return;
  suspendedMs = time - last;
  suspensionEnd = time;
}

void SuspendDetector::end() {
  lastHeartbeat = 0;
}

Milliseconds SuspendDetector::lastSuspension() {
  const int64_t time = now(), last = lastHeartbeat;
  // The thread with the heartbeats may not have run yet since.
  if (last != 0 && time - last >= threshold()) return Milliseconds(time - last);
  return Milliseconds(suspendedMs > 0 && time - suspensionEnd <= std::max(timeoutMs.load(), kMinMs) ? suspendedMs.load()
                                                                                                    : 0);
}

}  // namespace sheaf
