// Tells passes that move buffers which instructions of a plan use a buffer, and how.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "runtime/plan/Places.h"
#include "runtime/plan/Types.h"
#include "runtime/profile/Profile.h"

namespace sheaf::plan_ir {

// The instructions of one list of a plan: a part of the step, its body, or the evaluation.
struct Section {
  const plan::InstructionList* list = nullptr;
  std::vector<double> begin;  // seconds, of each instruction, if computation never waited; and the end
  std::unordered_map<uint32_t, std::vector<size_t>> uses;  // by buffer: indices of instructions, ascending
  uint32_t first = 0;  // position of the first instruction among those of all sections
  double times = 1;    // that a step runs it; 0: an evaluation's
  size_t size() const { return static_cast<size_t>(list->size()); }
  const plan::Instruction& at(size_t i) const { return list->Get(static_cast<int>(i)); }
  // Seconds of computation between two instructions.
  double between(size_t before, size_t after) const { return begin[after] - begin[before + 1]; }
};

// Uses of a buffer that find it in one place without a transfer between them: indices of instructions.
using Session = std::vector<size_t>;

// Whether a buffer is away between two uses, given by the indices of their instructions.
using Away = std::function<bool(const Section& section, size_t before, size_t after)>;

class BufferUses {
 public:
  // The plan is one from before anything is moved. Both must outlive this.
  BufferUses(const plan::Plan& plan, const profile::Profile& profile);

  const plan::Plan& plan() const { return plan_; }
  const std::vector<Section>& sections() const { return sections_; }
  uint32_t positions() const;  // of instructions, in all sections
  uint32_t buffers() const { return static_cast<uint32_t>(plan_.buffers_size()); }
  const plan::Buffer& at(uint32_t buffer) const { return plan_.buffers(static_cast<int>(buffer)); }

  // The only section that uses a buffer; null if several do, or none.
  const Section* onlySectionOf(uint32_t buffer) const;
  // A section's uses of a buffer, divided where it is away and where `apart` says that the next use is elsewhere.
  std::vector<Session> sessionsOf(const Section& section, uint32_t buffer, const Away& apart) const;

  // Whether an instruction of the session writes the buffer.
  static bool writes(const Section& section, const Session& session, uint32_t buffer);
  // Whether the session's first instruction overwrites all of the buffer, so that nothing of what was there before can
  // be found.
  bool writesWholeFirst(const Section& section, const Session& session, uint32_t buffer) const;
  // Whether a session writes all bytes of a buffer, as every rank finds it.
  bool isWritten(const Section& section, const Session& session, uint32_t buffer) const;

  // Bytes alive on the device at each position, where no more is moved than has been: what persists always lives, the
  // rest from its first to its last use.
  std::vector<uint64_t> liveBytes() const;

 private:
  bool isFull(plan::BlockMap<bool>& map, uint32_t buffer) const;

  const plan::Plan& plan_;
  const plan::Places places_;
  std::vector<Section> sections_;
};

}  // namespace sheaf::plan_ir
