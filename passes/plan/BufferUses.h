// Which instructions of a program use a buffer, and what they do to it: what passes that move buffers ask.
#pragma once

#include "ir/Plan/PlanDialect.h"
#include "runtime/plan/Places.h"
#include "runtime/profile/Profile.h"

namespace sheaf::plan_ir {

// The instructions of one list of a program: a part of the step, its body, or the evaluation.
struct Section {
  llvm::SmallVector<mlir::Operation*> ops;
  llvm::SmallVector<const plan::Instruction*> instructions;
  llvm::SmallVector<double> begin;  // seconds, of each instruction, if computation never waited; and the end
  llvm::DenseMap<mlir::Value, std::vector<size_t>> uses;  // by buffer: indices of instructions, ascending
  uint32_t first = 0;  // position of the first instruction among those of all sections
  double times = 1;    // that a step runs it; 0: an evaluation's
  // Seconds of computation between two instructions.
  double between(size_t before, size_t after) const { return begin[after] - begin[before + 1]; }
};

// Uses of a buffer that find it in one place without a transfer between them: indices of instructions.
using Session = llvm::SmallVector<size_t>;

// Whether a buffer is away between two uses, given by the indices of their instructions.
using Away = llvm::function_ref<bool(const Section& section, size_t before, size_t after)>;

class BufferUses {
 public:
  // The instructions of `program` are those of `plan`, in their order. All three must outlive this.
  BufferUses(ProgramOp program, const plan::Plan& plan, const profile::Profile& profile);

  llvm::ArrayRef<BufferOp> buffers() const { return buffers_; }
  const std::vector<Section>& sections() const { return sections_; }
  uint32_t positions() const;  // of instructions, in all sections

  // The only section that uses a buffer; null if several do, or none.
  const Section* onlySectionOf(BufferOp buffer) const;
  // A section's uses of a buffer, divided where it is away and where the next use has another executor.
  std::vector<Session> sessionsOf(const Section& section, BufferOp buffer, Away away) const;

  // Whether an instruction of the session writes the buffer.
  static bool writes(const Section& section, const Session& session, mlir::Value buffer);
  // Whether the session's first instruction overwrites all of the buffer, so that nothing of what was there before can
  // be found.
  bool writesWholeFirst(const Section& section, const Session& session, mlir::Value buffer) const;
  // Whether a session writes all bytes of a buffer, as every rank finds it.
  bool isWritten(const Section& section, const Session& session, BufferOp buffer) const;

  // Bytes alive on the device at each position, where no more is moved than has been: what persists always lives, the
  // rest from its first to its last use.
  std::vector<uint64_t> liveBytes() const;

 private:
  bool isFull(plan::BlockMap<bool>& map, uint32_t buffer) const;

  const plan::Plan& plan_;
  const plan::Places places_;
  llvm::SmallVector<BufferOp> buffers_;
  std::vector<Section> sections_;
};

}  // namespace sheaf::plan_ir
