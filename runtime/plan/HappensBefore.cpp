#include "runtime/plan/HappensBefore.h"

#include <algorithm>

namespace sheaf::plan {
namespace {

using Clock = std::vector<uint32_t>;  // per stream: how far it is known to be

// Waits of one stream with nothing between them, and what the stream knew before the first.
struct WaitGroup {
  struct Wait {
    size_t index;
    uint32_t stream;  // that recorded
    Clock learnt;
  };
  Clock before;
  std::vector<Wait> waits;
};

// A stream that knows a record's position in its own stream knows the record's whole clock: comparing positions
// suffices. Of two waits that imply each other the first stays.
void judge(const WaitGroup& group, std::vector<bool>& needed) {
  auto implies = [](const WaitGroup::Wait& a, const WaitGroup::Wait& b) {
    return a.learnt[b.stream] >= b.learnt[b.stream];
  };
  for (size_t i = 0; i < group.waits.size(); ++i) {
    const WaitGroup::Wait& wait = group.waits[i];
    bool implied = group.before[wait.stream] >= wait.learnt[wait.stream];
    for (size_t j = 0; j < group.waits.size() && !implied; ++j)
      implied = j != i && implies(group.waits[j], wait) && (j < i || !implies(wait, group.waits[j]));
    if (!implied) needed[wait.index] = true;
  }
}

}  // namespace

HappensBefore::HappensBefore(std::span<const IssuedInstruction> sequence, uint32_t streams, uint32_t events)
    : sequence_(sequence),
      streams_(streams),
      position_(sequence.size()),
      clocks_(sequence.size() * streams),
      needed_(sequence.size()) {
  struct Record {
    uint32_t stream = 0;
    Clock clock;  // empty: not recorded yet
  };
  std::vector<Clock> known(streams, Clock(streams));  // what a stream knows once all it has been issued is done
  std::vector<Record> recorded(events);               // the latest of each event
  std::vector<WaitGroup> groups(streams);
  Clock issued(streams);
  for (size_t i = 0; i < sequence.size(); ++i) {
    const IssuedInstruction& instruction = sequence[i];
    Clock& mine = known[instruction.stream];
    WaitGroup& group = groups[instruction.stream];
    if (instruction.kind == IssuedInstruction::kWait) {
      if (group.waits.empty()) group.before = mine;
      if (const Record& record = recorded[instruction.event]; !record.clock.empty()) {
        group.waits.push_back({i, record.stream, record.clock});
        for (uint32_t s = 0; s < streams; ++s) mine[s] = std::max(mine[s], record.clock[s]);
      }
    } else if (!group.waits.empty()) {
      judge(group, needed_);
      group.waits.clear();
    }
    std::copy(mine.begin(), mine.end(), clocks_.begin() + i * streams);
    position_[i] = mine[instruction.stream] = ++issued[instruction.stream];
    if (instruction.kind == IssuedInstruction::kRecord) recorded[instruction.event] = {instruction.stream, mine};
    if (instruction.kind == IssuedInstruction::kHost) std::fill(known.begin(), known.end(), issued);
  }
  for (const WaitGroup& group : groups) judge(group, needed_);
}

}  // namespace sheaf::plan
