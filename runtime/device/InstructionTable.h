// A rank's instructions, resolved once when its plan is opened: where their operands are, what they run, what they
// exchange with the host. A step runs from these entries and does not read the plan's messages again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/base/Text.h"
#include "runtime/comm/Communicator.h"
#include "runtime/device/cpu/RunKernel.h"
#include "runtime/plan/Generations.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf {

// A transfer between the rank's files and memory.
struct FileTransfer {
  bool read = false;            // from the file; else to it
  uint64_t offset = 0;          // in the rank's files
  uint64_t oddOffset = 0;       // the same while generations have changed places an odd number of times
  std::byte* memory = nullptr;  // memory of the device or the host
  uint64_t bytes = 0;
  bool onDevice = false;  // the memory is the device's

  uint64_t offsetAt(bool odd) const { return odd ? oddOffset : offset; }
};

// The fields that do not belong to an instruction's kind keep their defaults.
struct ResolvedInstruction {
  const plan::Instruction* instruction = nullptr;  // errors and traces name it
  plan::Instruction::KindCase kind = plan::Instruction::KIND_NOT_SET;
  uint32_t number = 0;  // counts through all of plan::sectionsOf()
  uint32_t stream = 0;
  uint32_t index = 0;  // of the kernel, event, input, output's tensor, or communicator (of a persist as well)
  std::vector<std::byte*> operands;  // addresses; null for operands in files
  // The size of an input, of scalars, of an output's value, of a copy between memories, of a persist's loss scale, or
  // of the gradient that an update reads.
  uint64_t bytes = 0;
  cpu::KernelLaunch launch;            // a kernel; its entry is null if the images lack it
  std::optional<uint32_t> updates;     // the bucket that a kernel updates
  std::byte* scratch = nullptr;        // the scratch of a library call
  comm::CollectiveBuffers collective;  // a collective, or the vote of a persist (plan::voteOf)
  plan::OutputKind output = plan::OUTPUT_KIND_UNSPECIFIED;
  bool toDevice = false;  // a copy between memories, to the device's
  std::optional<FileTransfer> file;
  int lossScale = -1;  // the operand of a persist that is the loss scale; -1: none
};

// Returns the loss or the gradient norm that an output's bytes are.
double scalarOutput(const ResolvedInstruction& output, const std::byte* bytes);

// A rank that instructions are resolved for.
struct RankInMemory {
  const plan::Plan& plan;
  int64_t rank = 0;
  std::byte *device = nullptr, *host = nullptr;  // its arenas; null if the plan has no buffers there
  const cpu::KernelImages* kernels = nullptr;    // kernels that processors run; null: none
};

// Fills in everything but the number. Errors do not name the instruction.
Status resolveInstruction(const RankInMemory& rank, const plan::Generations& generations,
                          const plan::Instruction& instruction, ResolvedInstruction& entry);

// All instructions of a plan, in the order of plan::sectionsOf(). `Entry` is a ResolvedInstruction with what a device
// adds. Entries stay where they are, even if the table is moved. The plan outlives the table.
template <typename Entry>
class InstructionTable {
 public:
  // `finish(entry)` adds the device's part and returns a Status. Errors name the instruction.
  template <typename Finish>
  Status fill(const RankInMemory& rank, Finish finish) {
    const plan::Generations generations(rank.plan);
    const std::vector<plan::Section> sections = plan::sectionsOf(rank.plan);
    size_t size = 0;
    for (const plan::Section& section : sections) size += static_cast<size_t>(section.list->size());
    entries_ = std::vector<Entry>(size);
    uint32_t number = 0;
    for (const plan::Section& section : sections)
      for (const plan::Instruction& instruction : *section.list) {
        Entry& entry = entries_[number];
        entry.number = number;
        Status status = resolveInstruction(rank, generations, instruction, entry);
        if (status.ok()) status = finish(entry);
        if (!status.ok()) return Status::error(cat(plan::describe(rank.plan, instruction), ": ", status.message()));
        numbers_.emplace(&instruction, number++);
      }
    return {};
  }

  // Returns null if the instruction is not the plan's. A step asks for one after the other, which needs no search.
  Entry* find(const plan::Instruction& instruction) {
    if (next_ >= entries_.size() || entries_[next_].instruction != &instruction) {
      const auto found = numbers_.find(&instruction);
      if (found == numbers_.end()) return nullptr;
      next_ = found->second;
    }
    return &entries_[next_++];
  }

  size_t size() const { return entries_.size(); }
  const Entry& operator[](size_t number) const { return entries_[number]; }
  Entry& operator[](size_t number) { return entries_[number]; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<const plan::Instruction*, uint32_t> numbers_;
  size_t next_ = 0;  // follows the entry that was found last
};

}  // namespace sheaf
