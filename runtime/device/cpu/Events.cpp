#include "runtime/device/cpu/Events.h"

#include "runtime/base/Spin.h"

namespace sheaf::cpu {

Events::Events(uint32_t events, uint32_t streams, comm::AbortSignal& abort, int spins)
    : streams_(streams),
      abort_(abort),
      spins_(spins),
      issued_(uint64_t(events) * streams),
      latest_(events),
      reached_(new std::atomic<uint64_t>[uint64_t(events) * streams]()),
      sleepers_(streams) {
  abort_.listen([this] {
    for (Sleeper& sleeper : sleepers_) wake(sleeper);
  });
}

void Events::wake(Sleeper& sleeper) {
  // The lock prevents a lost wake-up between the sleeper's check and its sleep.
  { std::lock_guard lock(sleeper.mutex); }
  sleeper.changed.notify_one();
}

Events::Record Events::issueRecord(uint32_t event, uint32_t stream) {
  return latest_[event] = {event, stream, ++issued_[event * streams_ + stream]};
}

void Events::reach(const Record& record) {
  // Sequentially consistent with what sleepers await: either the sleeper sees the record or we see the sleeper.
  reached_[placeOf(record)].store(record.number);
  for (Sleeper& sleeper : sleepers_)
    if (sleeper.awaits.load() == placeOf(record) + 1) wake(sleeper);
}

bool Events::wait(const Record& record, uint32_t stream) {
  if (record.number == 0) return true;
  auto done = [&] { return reached_[placeOf(record)].load() >= record.number || abort_.raised(); };
  if (!spinUntil(spins_, done)) {
    Sleeper& sleeper = sleepers_[stream];
    sleeper.awaits.store(placeOf(record) + 1);
    {
      std::unique_lock lock(sleeper.mutex);
      sleeper.changed.wait(lock, done);
    }
    sleeper.awaits.store(0);
  }
  return !abort_.raised();
}

}  // namespace sheaf::cpu
