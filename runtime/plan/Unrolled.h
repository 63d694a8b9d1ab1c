// The instructions of the run P B E host P B B E host (B being a whole step: its turns and the body), and V V host
// where there is an evaluation V (kUnrolled and kUnrolledEvaluation in HappensBefore.h), in issue order.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/Generations.h"
#include "runtime/plan/HappensBefore.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// Bytes of its arena that an operand may touch, by addressOf(), all ranks' places together: what is ordered for the
// union is ordered for each rank.
struct ArenaRange {
  uint64_t begin, end;
};
inline ArenaRange arenaRange(const Plan& plan, const Operand& operand) {
  uint64_t begin = addressOf(plan.buffers(static_cast<int>(operand.buffer()))) + operand.offset();
  return {begin, begin + operand.bytes() + mostRankOffset(plan, operand)};
}

class Unrolled {
 public:
  // The plan must outlive the object. With `more` steps after the two of the steady state.
  explicit Unrolled(const Plan& plan, int more = 0);

  struct Entry {
    const Instruction* instruction;  // null: the host
    Part part;
    int index;              // in its list
    int step;               // how many steps or batches of the evaluation have begun
    std::string_view list;  // the name of the list that it is in
    bool odd;               // whether the generations of files have changed roles an odd number of times before it
    uint32_t run;           // the number of its run of a list, or of its visit of the host, from 0 on
  };

  const Plan& plan() const { return plan_; }
  size_t size() const { return sequence_.size(); }
  const Entry& operator[](size_t entry) const { return sequence_[entry]; }
  bool isHost(size_t entry) const { return !sequence_[entry].instruction; }
  // Streams and events, for HappensBefore.
  const std::vector<IssuedInstruction>& issued() const { return issued_; }
  HappensBefore happensBefore() const { return {issued_, streams_, events_}; }
  uint32_t streams() const { return streams_; }
  // Entries [begin, end) of the first of two steps, or batches of the evaluation, that follow each other; the second
  // begins at `end`. Of the evaluation: empty if there is none.
  struct Round {
    size_t begin = 0, end = 0;
    size_t length() const { return end - begin; }
  };
  Round stepRound() const { return step_; }
  Round evaluationRound() const { return evaluation_; }
  // "body instruction 12 (gemm 'h.0.mlp' on stream compute)"
  std::string name(size_t entry) const;
  std::string streamName(size_t entry) const;
  // Where the buffer lies when the entry is issued: generations in files change places.
  uint64_t addressAt(size_t entry, uint32_t buffer) const {
    return addressOf(plan_.buffers(static_cast<int>(generations_.placeOf(buffer, sequence_[entry].odd))));
  }
  // The operand's arenaRange() then.
  ArenaRange rangeAt(size_t entry, const Operand& operand) const {
    const uint64_t begin = addressAt(entry, operand.buffer()) + operand.offset();
    return {begin, begin + operand.bytes() + mostRankOffset(plan_, operand)};
  }

 private:
  void append(Part part);
  void appendList(std::string_view name, Part part, const InstructionList& list);

  const Plan& plan_;
  const Generations generations_;
  int steps_ = 0;      // so far, and batches of the evaluation
  uint32_t runs_ = 0;  // lists and visits of the host so far
  bool odd_ = false;
  uint32_t streams_ = 1, events_ = 0;
  Round step_, evaluation_;
  std::vector<Entry> sequence_;
  std::vector<IssuedInstruction> issued_;
};

// Whether an operand is the scratch of its library call. What is in it is the business of the call alone.
inline bool isScratch(const Instruction& instruction, const Operand& operand) {
  return hasScratch(instruction) && &operand == &*instruction.operands().rbegin();
}

}  // namespace sheaf::plan
