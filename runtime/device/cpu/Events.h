// Events of one rank. A record is numbered when it is issued and reached when its stream gets there; a wait knows at
// issue which record it is for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/comm/AbortSignal.h"

namespace sheaf::cpu {

class Events {
 public:
  // A record of an event: the number-th on its stream. Number 0: none, always reached.
  struct Record {
    uint32_t event = 0;
    uint32_t stream = 0;
    uint64_t number = 0;
  };

  Events(uint32_t events, uint32_t streams, comm::AbortSignal& abort, int spins);

  // By the issuing thread: numbers a new record; the latest one of an event.
  Record issueRecord(uint32_t event, uint32_t stream);
  Record latestRecord(uint32_t event) const { return latest_[event]; }

  // By the streams: marks a record as reached; lets a stream wait for one (false if the run was aborted).
  void reach(const Record& record);
  bool wait(const Record& record, uint32_t stream);

 private:
  // A stream that waits, by itself: a record wakes only the streams that wait for it, because every other wake-up would
  // take a core from computation.
  struct alignas(64) Sleeper {
    std::atomic<uint64_t> awaits = 0;  // 1 + the place of the record; 0: it does not sleep
    std::mutex mutex;
    std::condition_variable changed;
  };

  uint64_t placeOf(const Record& record) const { return record.event * streams_ + record.stream; }
  void wake(Sleeper& sleeper);

  const uint64_t streams_;
  comm::AbortSignal& abort_;
  const int spins_;
  std::vector<uint64_t> issued_;
  std::vector<Record> latest_;
  // Records of one event on one stream are reached in the order of their numbers.
  std::unique_ptr<std::atomic<uint64_t>[]> reached_;
  std::vector<Sleeper> sleepers_;  // by stream
};

}  // namespace sheaf::cpu
