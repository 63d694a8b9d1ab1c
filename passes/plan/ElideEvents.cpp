// Removes waits that other order implies, records that nothing waits for, and renumbers the events.
#include <unordered_map>
#include <unordered_set>

#include "passes/plan/Edits.h"
#include "passes/plan/Finish.h"
#include "runtime/plan/Unrolled.h"

namespace sheaf::plan_ir {

Status elideEvents(Draft& draft) {
  // A wait is removed if it is redundant in every round of the loop.
  std::unordered_set<const plan::Instruction*> needed;
  std::unordered_map<uint32_t, uint32_t> numbers;
  {
    const plan::Unrolled sequence(draft.plan);
    const plan::HappensBefore order = sequence.happensBefore();
    for (size_t i = 0; i < sequence.size(); ++i)
      if (!sequence.isHost(i) && sequence[i].instruction->has_wait() && order.needed(i)) {
        needed.insert(sequence[i].instruction);
        numbers.try_emplace(sequence[i].instruction->wait().event(), 0);
      }
  }
  uint32_t next = 0;
  for (plan::InstructionList* of : listsOf(draft.plan)) {
    OpenList list(*of);
    for (OpenList::Place at = list.begin(); at != list.end();) {
      const plan::Instruction& instruction = **at;
      const bool stays = instruction.has_record() ? numbers.contains(instruction.record().event())
                                                  : !instruction.has_wait() || needed.contains(&instruction);
      if (!stays) {
        at = list.erase(at);
        continue;
      }
      if (instruction.has_record()) {
        numbers[instruction.record().event()] = next;
        (*at)->mutable_record()->set_event(next++);
      }
      ++at;
    }
  }
  for (plan::InstructionList* list : listsOf(draft.plan))
    for (plan::Instruction& instruction : *list)
      if (instruction.has_wait()) instruction.mutable_wait()->set_event(numbers[instruction.wait().event()]);
  draft.plan.set_events(next);
  return {};
}

}  // namespace sheaf::plan_ir
