#include "runtime/device/cpu/Events.h"

#include "runtime/base/Spin.h"

namespace sheaf::cpu {

Events::Events(uint32_t events, uint32_t streams, comm::AbortSignal& abort, int spins)
    : streams_(streams),
      abort_(abort),
      spins_(spins),
      issued_(uint64_t(events) * streams),
      latest_(events),
      reached_(new std::atomic<uint64_t>[uint64_t(events) * streams]()) {
  abort_.listen([this] {
    { std::lock_guard lock(mutex_); }
    changed_.notify_all();
  });
}

Events::Record Events::issueRecord(uint32_t event, uint32_t stream) {
  return latest_[event] = {event, stream, ++issued_[event * streams_ + stream]};
}

void Events::reach(const Record& record) {
  // Sequentially consistent with the sleeper's count: either the sleeper sees the record or we see the sleeper.
  reached(record).store(record.number);
  if (sleepers_.load() == 0) return;
  { std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

bool Events::wait(const Record& record) {
  if (record.number == 0) return true;
  auto done = [&] { return reached(record).load() >= record.number || abort_.raised(); };
  if (!spinUntil(spins_, done)) {
    sleepers_.fetch_add(1);
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, done);
    }
    sleepers_.fetch_sub(1);
  }
  return !abort_.raised();
}

}  // namespace sheaf::cpu
