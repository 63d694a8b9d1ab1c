// What is known of a rank's instructions before the first step: where their operands are, what they call, where they
// exchange values with the host.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/device/cuda/Arena.h"
#include "runtime/device/cuda/FileStream.h"
#include "runtime/device/cuda/HostCompute.h"
#include "runtime/device/cuda/HostSlots.h"
#include "runtime/device/cuda/LibraryFunction.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/plan.pb.h"

namespace sheaf::cuda {

struct Entry {
  const plan::Instruction* instruction = nullptr;
  uint32_t number = 0;               // all of plan::sectionsOf() counted through
  int list = -1;                     // of InstructionTable::lists()
  bool marked = false;               // its beginning is noted where a watchdog sees it
  bool waitsOutside = false;         // a wait in a list for a record before the list
  std::vector<std::byte*> operands;  // their addresses; null in files
  std::vector<void*> arguments;      // a kernel's: pointers to the above
  std::unique_ptr<const LibraryFunction> function;
  std::optional<HostSlots> slots;           // of an input, of scalars, of an output, of the loss scale of a persist
  std::optional<FileStream::Request> file;  // of a transfer from or to a file
  // Of a launch on the host. The thread that does it may have it longer than the context lives.
  std::shared_ptr<const HostCompute::Request> onHost;

  // Whether a thread of the host has a part, which is asked for each time that the instruction runs.
  bool asksHost() const { return file || onHost || instruction->has_persist(); }
};

// What the host receives of an output, and where in the output's slot the first error follows that kernels have found.
inline size_t outputBytes(const plan::Instruction& instruction) {
  const plan::OutputKind output = instruction.output().output();
  if (output == plan::TENSOR) return plan::sourceOf(instruction).bytes();
  return output == plan::GRADIENT_NORM ? sizeof(double) : sizeof(float);
}
inline size_t findingOffset(const plan::Instruction& instruction) {
  return (outputBytes(instruction) + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
}

class InstructionTable {
 public:
  // `host`: the rank's arena in host memory; null if the plan has no buffers there. `hostKernels`: for launches on the
  // host; null if the plan has none.
  static Expected<std::unique_ptr<InstructionTable>> create(const plan::Plan& plan, int64_t rank, const Arena& arena,
                                                            const HostArena* host, const cpu::KernelImages* hostKernels,
                                                            Blas& blas);
  // Null if the instruction is not the plan's.
  Entry* find(const plan::Instruction& instruction) {
    auto found = numbers_.find(&instruction);
    return found == numbers_.end() ? nullptr : &entries_[found->second];
  }
  size_t size() const { return entries_.size(); }
  const Entry& operator[](uint32_t number) const { return entries_[number]; }
  // What a step runs as a whole: the body, and before it parts of several micro-batches. Entries from begin to end. A
  // part that draws random numbers for several micro-batches is none: a graph has the place of their rows in it. The
  // body ends before a persist, which waits for the step's loss and norm: a graph delivers them when it has ended.
  struct List {
    uint32_t begin, end;
  };
  const std::vector<List>& lists() const { return lists_; }
  Entry& at(uint32_t number) { return entries_[number]; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<const plan::Instruction*, uint32_t> numbers_;
  std::vector<List> lists_;
};

}  // namespace sheaf::cuda
